// AI SDK: a tool, whole and streamed, and an object of a schema, by `openai-compatible`; the same object by `openai(…).chat`.
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateObject, generateText, isStepCount, streamText, tool } from 'ai'
import { z } from 'zod'

const print = (line) => console.log(JSON.stringify(line))
const { OPENAI_BASE_URL: url, JSON_BASE_URL: jsonUrl, OPENAI_API_KEY: apiKey } = process.env
const id = 'midstream-demo'
const compatible = (baseURL) =>
  createOpenAICompatible({ name: 'midstream', baseURL, apiKey, supportsStructuredOutputs: true })(id)

const ask = {
  model: compatible(url),
  prompt: 'What is the weather in Oslo?',
  temperature: 0,
  stopWhen: isStepCount(3),
  tools: {
    get_weather: tool({
      description: 'Say what the weather is.',
      inputSchema: z.object({ city: z.string() }),
      execute: async () => 'rain, 7 °C',
    }),
  },
}
const called = (steps) => steps.flatMap((step) => step.toolCalls.map((call) => [call.toolName, call.input]))

const whole = await generateText(ask)
print({ did: 'tool', called: called(whole.steps), text: whole.text })
const stream = streamText(ask)
for await (const _ of stream.textStream);
print({ did: 'streamed', called: called(await stream.steps), text: await stream.text })

const person = {
  schema: z.object({ name: z.string().max(20), age: z.number().int().min(0).max(150) }),
  prompt: 'Ada is 36 years old. As JSON.',
  temperature: 0,
}
const chat = createOpenAI({ baseURL: url, apiKey }).chat(id)
print({ did: 'person', is: (await generateObject({ ...person, model: chat })).object })
print({ did: 'held', is: (await generateObject({ ...person, model: compatible(jsonUrl) })).object })
