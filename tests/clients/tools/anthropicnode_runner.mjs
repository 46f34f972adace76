// Anthropic's client for Node: its tool runner, which runs the tool and sends the result, whole and streamed.
import Anthropic from '@anthropic-ai/sdk'
import { betaTool } from '@anthropic-ai/sdk/helpers/beta/json-schema'

const client = new Anthropic({ baseURL: process.env.OPENAI_BASE_URL.replace(/\/v1$/, ''), apiKey: 'anything' })

for (const stream of [false, true]) {
  const called = []
  const weather = betaTool({
    name: 'get_weather',
    description: 'Say what the weather is.',
    inputSchema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
    run: ({ city }) => {
      called.push(['get_weather', { city }])
      return 'rain, 7 °C'
    },
  })
  const last = await client.beta.messages.toolRunner({
    model: 'midstream-demo',
    max_tokens: 2000,
    messages: [{ role: 'user', content: 'What is the weather in Oslo?' }],
    tools: [weather],
    stream,
  }).runUntilDone()
  console.log(JSON.stringify({ did: stream ? 'streamed' : 'tool', called, text: last.content[0].text }))
}
