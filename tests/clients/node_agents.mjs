// OpenAI's agents SDK for Node, text only: a turn, one that is cancelled, one that remembers the first, and the history.
import { OpenAIRealtimeWebSocket, RealtimeAgent, RealtimeSession } from '@openai/agents-realtime'

const print = (line) => console.log(JSON.stringify(line))
const model = 'midstream-demo'
const { OPENAI_API_KEY: apiKey, OPENAI_BASE_URL: base } = process.env

const agent = new RealtimeAgent({ name: 'Assistant', instructions: 'You are a helpful assistant.' })
const transport = new OpenAIRealtimeWebSocket()
const session = new RealtimeSession(agent, { model, transport, config: { outputModalities: ['text'] } })
const failed = new Promise((_, reject) => session.on('error', ({ error }) => reject(new Error(JSON.stringify(error)))))

async function reply(text, until) {
  let output = ''
  const listen = (event) => {
    output += event.delta
    if (until && output.includes(until)) {
      transport.sendEvent({ type: 'response.cancel' }) // session.interrupt() is for what is heard: it needs audio
      until = undefined
    }
  }
  transport.on('output_text_delta', listen)
  session.sendMessage(text)
  await Promise.race([failed, new Promise((resolve) => session.once('agent_end', resolve))])
  transport.off('output_text_delta', listen)
  return { text: output }
}

await session.connect({ apiKey, url: `${base.replace('http', 'ws')}/realtime?model=${model}` })
print({ did: 'first', ...(await reply('My name is Ada.')) })
print({ did: 'cancelled', ...(await reply('Count from 1 to 500.', ' 20,')) })
print({ did: 'again', ...(await reply('What is my name?')) })
const items = session.history.map(({ role, content }) => [role, content.map((part) => part.text ?? '').join('')])
print({ did: 'history', items })
session.close()
