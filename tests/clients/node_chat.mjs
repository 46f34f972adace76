// OpenAI's client for Node: the models, a whole reply, a stream, and one that is left in the middle.
import OpenAI from 'openai'

const print = (line) => console.log(JSON.stringify(line))
const model = 'midstream-demo'
const messages = [{ role: 'user', content: 'Count from 1 to 500.' }]

const client = new OpenAI() // reads OPENAI_BASE_URL and OPENAI_API_KEY
print({ did: 'models', ids: (await client.models.list()).data.map(({ id }) => id) })

const whole = await client.chat.completions.create({ model, messages, temperature: 0, stop: ' 12' })
print({ did: 'whole', text: whole.choices[0].message.content, tokens: whole.usage.completion_tokens })

let [text, tokens] = ['', null]
for await (const chunk of await client.chat.completions.create({
  model, messages, temperature: 0, stop: ' 12', stream: true, stream_options: { include_usage: true },
})) {
  text += chunk.choices[0]?.delta.content ?? ''
  tokens = chunk.usage?.completion_tokens
}
print({ did: 'stream', text, tokens })

text = ''
for await (const chunk of await client.chat.completions.create({ model, messages, temperature: 0, stream: true })) {
  text += chunk.choices[0]?.delta.content ?? ''
  if (text.includes(' 20,')) break // leaving the loop closes the connection, and that stops the model
}
print({ did: 'left', text })

try {
  await client.chat.completions.create({ model: 'another', messages })
} catch (error) {
  if (error instanceof OpenAI.NotFoundError) print({ did: 'refused', why: error.message })
  else throw error
}
