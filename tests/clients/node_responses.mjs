// `openai` for Node over Responses: whole, streamed behind the first one, left, and by a socket.
import OpenAI from 'openai'
import { ResponsesWS } from 'openai/resources/responses/ws'

const print = (line) => console.log(JSON.stringify(line))
const client = new OpenAI() // reads OPENAI_BASE_URL and OPENAI_API_KEY
const model = 'midstream-demo'

const text = async (stream, until) => {
  let output = ''
  for await (const event of stream) {
    if (event.type === 'response.output_text.delta') output += event.delta
    if (until && output.includes(until)) break
  }
  return output
}

const first = await client.responses.create({ model, input: 'My name is Ada.' })
const again = await client.responses.retrieve(first.id)
print({ did: 'whole', text: first.output_text, again: again.output_text })
const more = { model, input: 'What is my name?', previous_response_id: first.id }
print({ did: 'stream', text: await text(await client.responses.create({ ...more, stream: true })) })
const count = { model, input: 'Count from 1 to 500.', stream: true }
print({ did: 'left', text: await text(await client.responses.create(count), ' 20,') })

const socket = new ResponsesWS(client)
const done = new Promise((resolve, reject) => {
  socket.on('error', reject)
  socket.on('response.completed', (event) => resolve(event.response.output[0].content[0].text))
})
socket.socket.on('open', () => socket.send({ type: 'response.create', ...more }))
print({ did: 'socket', text: await done })
socket.close()
