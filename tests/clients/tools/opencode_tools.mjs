// opencode, the agent for terminals, run once in a folder with a file that it has to read.
import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey } = process.env
const folder = mkdtempSync(join(tmpdir(), 'opencode-'))
writeFileSync(join(folder, 'weather.txt'), 'rain, 7 °C\n')
const settings = join(folder, '.config', 'opencode')
mkdirSync(settings, { recursive: true })
writeFileSync(join(settings, 'opencode.json'), JSON.stringify({
  share: 'disabled',
  autoupdate: false,
  model: 'midstream/midstream-demo',
  small_model: 'midstream/midstream-demo',
  provider: {
    midstream: {
      npm: '@ai-sdk/openai-compatible',
      name: 'Midstream',
      options: { baseURL, apiKey },
      models: { 'midstream-demo': { name: 'midstream-demo', limit: { context: 100000, output: 2048 } } },
    },
  },
}))
const program = fileURLToPath(new URL('node_modules/.bin/opencode', import.meta.url))
const ran = spawnSync(program, ['run', '--format', 'json', 'What is the weather in Oslo?'], {
  cwd: folder,
  env: { ...process.env, HOME: folder, PWD: folder, OPENCODE_DISABLE_MODELS_FETCH: '1' },
  stdio: ['ignore', 'pipe', 'inherit'],
  encoding: 'utf8',
})
if (ran.status !== 0) throw new Error(`opencode ended with ${ran.status}: ${ran.stdout}`)
const parts = ran.stdout.split('\n').filter((line) => line.startsWith('{')).map((line) => JSON.parse(line).part)
const calls = parts.filter((part) => part.type === 'tool')
const text = parts.filter((part) => part.type === 'text').at(-1).text
console.log(JSON.stringify({ did: 'read', called: calls.map(({ tool, state }) => [tool, state.status]), text }))
