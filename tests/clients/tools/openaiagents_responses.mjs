// OpenAI's agents SDK for Node with its default, which is Responses: a tool, whole and streamed, twenty turns, a handoff, an object.
import { Agent, OpenAIResponsesModel, run, setTracingDisabled, tool } from '@openai/agents'
import OpenAI from 'openai'
import { z } from 'zod'

const print = (line) => console.log(JSON.stringify(line))
const { JSON_BASE_URL: jsonUrl, OPENAI_API_KEY: apiKey } = process.env
const question = 'What is the weather in Oslo?'
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
const whole = await run(agent, question)
print({ did: 'tool', called: calls(whole), text: whole.finalOutput })
const stream = await run(agent, question, { stream: true })
for await (const _ of stream);
await stream.completed
print({ did: 'streamed', called: calls(stream), text: stream.finalOutput })

let [history, last, texts] = [[], undefined, []]
for (let turn = 0; turn < 10; turn += 1) {
  const repeated = await run(agent, [...history, { role: 'user', content: question }])
  history = repeated.history
  texts.push(repeated.finalOutput)
  const followed = await run(agent, question, { previousResponseId: last })
  last = followed.lastResponseId
  texts.push(followed.finalOutput)
}
print({ did: 'turns', texts: [...new Set(texts)], count: texts.length })

const forecaster = new Agent({ name: 'forecaster', instructions: 'Know the weather.', model, tools: [weather] })
const triage = new Agent({ name: 'Desk', instructions: 'Hand over.', model, handoffs: [forecaster] })
const handed = await run(triage, question)
print({ did: 'handoff', called: calls(handed), text: handed.finalOutput, by: handed.lastAgent.name })

const client = new OpenAI({ baseURL: jsonUrl, apiKey })
const held = new Agent({
  name: 'Assistant',
  model: new OpenAIResponsesModel(client, model),
  modelSettings: { temperature: 0 },
  outputType: z.object({ name: z.string().max(20), age: z.number().int().min(0).max(150) }),
})
print({ did: 'held', is: (await run(held, 'Ada is 36 years old. As JSON.')).finalOutput })
