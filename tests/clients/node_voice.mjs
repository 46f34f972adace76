// OpenAI's agents SDK for Node with sound: two spoken turns, the second interrupted by speech, which the SDK truncates.
import { readFileSync } from 'node:fs'
import { OpenAIRealtimeWebSocket, RealtimeAgent, RealtimeSession } from '@openai/agents-realtime'

const print = (line) => console.log(JSON.stringify(line))
const model = 'midstream-demo'
const { OPENAI_API_KEY: apiKey, OPENAI_BASE_URL: base, SPOKEN } = process.env
const PART = (24000 / 25) * 2

const agent = new RealtimeAgent({ name: 'Assistant' })
const transport = new OpenAIRealtimeWebSocket()
const session = new RealtimeSession(agent, { model, transport })
const failed = new Promise((_, reject) => session.on('error', ({ error }) => reject(new Error(JSON.stringify(error)))))

let waiting = Buffer.alloc(0)
const speak = (name) => (waiting = Buffer.concat([waiting, readFileSync(`${SPOKEN}/${name}.pcm`)]))
const microphone = setInterval(() => {
  const part = Buffer.alloc(PART)
  waiting.copy(part, 0, 0, PART)
  waiting = waiting.subarray(PART)
  session.sendAudio(part.buffer.slice(part.byteOffset, part.byteOffset + PART))
}, 40)

// The SDK asks for an item that was truncated.
const isKept = ({ type, item }) => type === 'conversation.item.retrieved' && item.role === 'assistant'

// What is replied to what is said; `then` is called once so much of it came.
async function reply(bytesBefore, then) {
  const result = { heard: '', said: '', ms: null, bytes: 0 }
  const listen = (event) => {
    if (event.type === 'conversation.item.input_audio_transcription.completed') result.heard = event.transcript
    if (event.type === 'response.output_audio_transcript.done') result.said = event.transcript
    if (event.type === 'conversation.item.truncated') result.ms = result.kept_ms = event.audio_end_ms
    if (isKept(event) && result.ms !== null) result.kept = event.item.content[0].transcript
  }
  const count = ({ data }) => {
    result.bytes += data.byteLength
    if (then && result.bytes > bytesBefore) {
      then()
      then = undefined
    }
  }
  transport.on('*', listen)
  transport.on('audio', count)
  const over = then
    ? new Promise((resolve) => transport.on('*', (event) => isKept(event) && result.ms !== null && resolve()))
    : new Promise((resolve) => transport.on('*', (event) => event.type === 'response.done' && resolve()))
  await Promise.race([failed, over])
  transport.off('*', listen)
  transport.off('audio', count)
  return result
}

await session.connect({ apiKey, url: `${base.replace('http', 'ws')}/realtime?model=${model}` })
speak('name')
print({ did: 'first', ...(await reply()) })
speak('story')
print({ did: 'interrupted', ...(await reply(24000 * 2 * 1.2, () => speak('again'))) })
print({ did: 'again', ...(await reply()) })
clearInterval(microphone)
session.close()
