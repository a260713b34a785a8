/**
 * `kvfold serve` with the OpenAI SDK. Start the server, then this program:
 *
 *     npx kvfold serve
 *     node --import tsx examples/serve-openai.ts      # OPENAI_BASE_URL: the server's address, if not the default
 */
import OpenAI from 'openai'

const baseURL = process.env['OPENAI_BASE_URL'] ?? 'http://127.0.0.1:8080/v1'
const openai = new OpenAI({ baseURL, apiKey: process.env['OPENAI_API_KEY'] ?? 'none' })
const [model] = (await openai.models.list()).data
if (model === undefined) throw new Error(`${baseURL} serves no model.`)

/** Sends the whole conversation every time, as any client does. The `kvfold` field asks for the name of its thread. */
const messages: OpenAI.ChatCompletionMessageParam[] = []
async function ask(content: string) {
  messages.push({ role: 'user', content })
  const request = { model: model!.id, messages, max_completion_tokens: 24, temperature: 0, kvfold: { contract: 'splice' } }
  const completion = await openai.chat.completions.create(request)
  messages.push({ role: 'assistant', content: completion.choices[0]?.message.content ?? '' })
  const { prompt_tokens = 0, prompt_tokens_details } = completion.usage ?? {}
  console.log(`${prompt_tokens} tokens in the prompt, ${prompt_tokens_details?.cached_tokens ?? 0} of them were in the cache`)
  return (completion as typeof completion & { kvfold: { thread: string } }).kvfold.thread
}

const log = Array.from({ length: 120 }, (_, line) => `${line}: request ${line * 7} took ${(line * 13) % 90} ms`).join('\n')
const thread = await ask(`The log begins here.\n${log}\nThe log ends here. What is in it?`)
await ask('And what is not?')

/** Routes under /kvfold do what OpenAI's API cannot: here the log is cut in two and both parts are folded. */
const post = async (path: string, body: object) => {
  const url = new URL(`/kvfold/threads/${thread}/${path}`, baseURL)
  const headers = { 'content-type': 'application/json', authorization: `Bearer ${openai.apiKey}` }
  const response = await fetch(url, { method: 'POST', headers, body: JSON.stringify(body) })
  if (!response.ok) throw new Error(await response.text())
  return (await response.json()) as { fragments: { id: string }[] }
}
const { fragments } = await post('fragments', {
  startMarker: 'The log begins here.',
  endMarker: 'The log ends here.',
  numFragments: 2,
})
for (const { id } of fragments) await post(`fragments/${id}/fold`, {})
console.log(`folded ${fragments.length} fragments`)

// The client still sends everything. The server finds the thread, and shows the markers.
await ask('In short?')
