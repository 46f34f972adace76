// OpenAI's agents SDK for Node with its default, which is Responses: a tool, whole and streamed, twenty turns, a handoff, an object.
import { Agent, OpenAIResponsesModel, run, setTracingDisabled, tool } from '@openai/agents'
import OpenAI from 'openai'
import { z } from 'zod'

const say = (line) => console.log(JSON.stringify(line))
const { JSON_BASE_URL: jsonUrl, OPENAI_API_KEY: apiKey } = process.env
const asked = 'What is the weather in Oslo?'
const model = 'midstream-demo'
setTracingDisabled(true) // traces go to OpenAI

const weather = tool({
  name: 'get_weather',
  description: 'Say what the weather is.',
  parameters: z.object({ city: z.string() }),
  execute: async () => 'rain, 7 °C',
})
const calls = (result) => result.newItems
  .filter(({ type }) => type === 'tool_call_item' || type === 'handoff_call_item')
  .map(({ rawItem }) => [rawItem.name, JSON.parse(rawItem.arguments)])

const agent = new Agent({ name: 'Assistant', instructions: 'Be kind.', model, tools: [weather] })
const whole = await run(agent, asked)
say({ did: 'tool', called: calls(whole), text: whole.finalOutput })
const stream = await run(agent, asked, { stream: true })
for await (const _ of stream);
await stream.completed
say({ did: 'streamed', called: calls(stream), text: stream.finalOutput })

let [said, last, texts] = [[], undefined, []]
for (let turn = 0; turn < 10; turn += 1) {
  const repeated = await run(agent, [...said, { role: 'user', content: asked }])
  said = repeated.history
  texts.push(repeated.finalOutput)
  const followed = await run(agent, asked, { previousResponseId: last })
  last = followed.lastResponseId
  texts.push(followed.finalOutput)
}
say({ did: 'turns', texts: [...new Set(texts)], count: texts.length })

const forecaster = new Agent({ name: 'forecaster', instructions: 'Know the weather.', model, tools: [weather] })
const desk = new Agent({ name: 'Desk', instructions: 'Hand over.', model, handoffs: [forecaster] })
const handed = await run(desk, asked)
say({ did: 'handoff', called: calls(handed), text: handed.finalOutput, by: handed.lastAgent.name })

const client = new OpenAI({ baseURL: jsonUrl, apiKey })
const held = new Agent({
  name: 'Assistant',
  model: new OpenAIResponsesModel(client, model),
  modelSettings: { temperature: 0 },
  outputType: z.object({ name: z.string().max(20), age: z.number().int().min(0).max(150) }),
})
say({ did: 'held', is: (await run(held, 'Ada is 36 years old. As JSON.')).finalOutput })
