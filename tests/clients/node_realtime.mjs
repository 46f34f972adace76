// OpenAI's client for Node over its Realtime protocol (wss only): a turn, one that is cancelled, one that remembers the first.
import OpenAI from 'openai'
import { OpenAIRealtimeWS } from 'openai/realtime/ws'

const print = (line) => console.log(JSON.stringify(line))
const connection = new OpenAIRealtimeWS({ model: 'midstream-demo' }, new OpenAI()) // reads OPENAI_BASE_URL and OPENAI_API_KEY
const failed = new Promise((_, reject) => connection.on('error', reject))
const next = (type) => Promise.race([failed, new Promise((resolve) => connection.once(type, resolve))])

async function reply(text, until) {
  let output = ''
  let item
  const listen = (event) => {
    output += event.delta
    item = event.item_id
    if (until && output.includes(until)) {
      connection.send({ type: 'response.cancel' })
      until = undefined
    }
  }
  connection.on('response.output_text.delta', listen)
  const content = [{ type: 'input_text', text }]
  connection.send({ type: 'conversation.item.create', item: { type: 'message', role: 'user', content } })
  connection.send({ type: 'response.create' })
  const { response } = await next('response.done')
  connection.off('response.output_text.delta', listen)
  return { text: output, item, status: response.status, tokens: response.usage.output_tokens }
}

async function kept(item) {
  connection.send({ type: 'conversation.item.retrieve', item_id: item })
  return (await next('conversation.item.retrieved')).item.content[0].text
}

await next('session.created')
connection.send({ type: 'session.update', session: { type: 'realtime', output_modalities: ['text'] } })
print({ did: 'first', ...(await reply('My name is Ada.')) })
const cancelled = await reply('Count from 1 to 500.', ' 20,')
print({ did: 'cancelled', ...cancelled, kept: await kept(cancelled.item) })
print({ did: 'again', ...(await reply('What is my name?')) })
connection.close()
