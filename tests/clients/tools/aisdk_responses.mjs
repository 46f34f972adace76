// AI SDK's `openai(…)` as it comes, which is Responses: a tool, whole and streamed, turns that follow each other, an object of a schema, a stream that is left.
import { createOpenAI } from '@ai-sdk/openai'
import { generateObject, generateText, isStepCount, streamText, tool } from 'ai'
import { z } from 'zod'

const print = (line) => console.log(JSON.stringify(line))
const { OPENAI_BASE_URL: url, JSON_BASE_URL: jsonUrl, OPENAI_API_KEY: apiKey } = process.env
const openai = (baseURL) => createOpenAI({ baseURL, apiKey })('midstream-demo')

const ask = {
  model: openai(url),
  stopWhen: isStepCount(3),
  tools: {
    get_weather: tool({
      description: 'Say what the weather is.',
      inputSchema: z.object({ city: z.string() }),
      execute: async () => 'rain, 7 °C',
    }),
  },
}
const user = { role: 'user', content: 'What is the weather in Oslo?' }
const called = (steps) => steps.flatMap((step) => step.toolCalls.map((call) => [call.toolName, call.input]))

const whole = await generateText({ ...ask, messages: [user] })
print({ did: 'tool', called: called(whole.steps), text: whole.text })
const stream = streamText({ ...ask, messages: [user] })
for await (const _ of stream.textStream);
print({ did: 'streamed', called: called(await stream.steps), text: await stream.text })

const messages = []
const texts = []
for (let turn = 0; turn < 20; turn += 1) {
  messages.push(user)
  const whole = await generateText({ ...ask, messages })
  messages.push(...whole.steps.flatMap((step) => step.response.messages))
  texts.push(whole.text)
}
print({ did: 'turns', texts: [...new Set(texts)], count: texts.length })

const person = {
  schema: z.object({ name: z.string().max(20), age: z.number().int().min(0).max(150) }),
  prompt: 'Ada is 36 years old. As JSON.',
}
print({ did: 'held', is: (await generateObject({ ...person, model: openai(jsonUrl) })).object })
