// CopilotKit: its core in a page's place, its runtime behind that, AG-UI's agent behind that: a tool of the page's, a stop.
import { createServer } from 'node:http'
import { HttpAgent } from '@ag-ui/client'
import { CopilotRuntime } from '@copilotkit/runtime/v2'
import { createCopilotNodeListener } from '@copilotkit/runtime/v2/node'
import { z } from 'zod'

globalThis.window = globalThis // its core connects in a page alone
const { CopilotKitCore } = await import('@copilotkit/core')

const print = (line) => console.log(JSON.stringify(line))
const agents = { default: new HttpAgent({ url: `${process.env.OPENAI_BASE_URL}/ag-ui` }) }
const basePath = '/api/copilotkit'
const server = createServer(createCopilotNodeListener({ runtime: new CopilotRuntime({ agents }), basePath }))
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))

const called = []
const core = new CopilotKitCore({
  runtimeUrl: `http://127.0.0.1:${server.address().port}${basePath}`,
  tools: [
    {
      name: 'get_weather',
      description: 'Say what the weather is.',
      parameters: z.object({ city: z.string() }),
      handler: async (args) => {
        called.push(['get_weather', args])
        return 'rain, 7 °C'
      },
    },
  ],
})
const connected = new Promise((resolve) => {
  core.subscribe({ onRuntimeConnectionStatusChanged: ({ status }) => status === 'connected' && resolve() })
})
await connected

const ask = (content) => {
  const agent = core.getAgent('default').clone()
  agent.threadId = crypto.randomUUID()
  agent.addMessage({ id: crypto.randomUUID(), role: 'user', content })
  return agent
}
const weather = ask('What is the weather in Oslo?')
await core.runAgent({ agent: weather })
print({ did: 'tool', called, text: weather.messages.at(-1).content, roles: weather.messages.map(({ role }) => role) })

const counting = ask('Count from 1 to 500.')
let text = ''
counting.subscribe({
  onTextMessageContentEvent: ({ textMessageBuffer }) => {
    text = textMessageBuffer
    if (text.includes(' 20,')) core.stopAgent({ agent: counting })
  },
})
await core.runAgent({ agent: counting })
print({ did: 'left', text })
process.exit(0)
