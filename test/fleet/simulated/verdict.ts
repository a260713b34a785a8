/** Checks a fleet after its faults: acknowledged answers are there, nothing is there twice, and errors told clients what to do. */
import type { Acknowledged, Client, Message, Refused } from './clients.js'

interface Stored {
  readonly id: string
  readonly messages: readonly { readonly message: Message }[]
  readonly ledger: readonly { readonly kind: string }[]
}

/** Asks a front with a client's key. */
type Ask = (path: string) => Promise<{ readonly status: number; readonly body: unknown }>

const asking =
  (front: string, key: string): Ask =>
  async (path) => {
    const response = await fetch(`${front}${path}`, { headers: { authorization: `Bearer ${key}` } })
    return { status: response.status, body: await response.json() }
  }

/** Returns a sentence for each thing that is wrong; none if everything is as promised. */
export async function wrongAt(fronts: readonly string[], client: Client, key: string): Promise<string[]> {
  const wrong: string[] = []
  const [one, other] = fronts.map((front) => asking(front, key))
  const deleted = new Set(client.acknowledged.flatMap((each) => (each.kind === 'deletion' ? [each.thread] : [])))
  const threads = await threadsAt(one!)
  const elsewhere = await threadsAt(other!)
  if (JSON.stringify([...threads]) !== JSON.stringify([...elsewhere])) wrong.push('the two fronts tell of different threads')
  for (const id of deleted) if (threads.has(id)) wrong.push(`thread ${id} is there again, and was deleted`)
  for (const each of client.acknowledged) wrong.push(...(await missing(each, threads, deleted, other!)))
  for (const thread of threads.values()) wrong.push(...twiceIn(thread))
  wrong.push(...twiceAmong([...threads.values()], client))
  for (const refused of client.refused)
    if (!saysWhatToDo(refused)) wrong.push(`a client was told no more than ${JSON.stringify(refused)}`)
  return wrong
}

async function threadsAt(ask: Ask): Promise<ReadonlyMap<string, Stored>> {
  const { threads } = (await ask('/kvfold/threads')).body as { threads: { id: string }[] }
  const stored = new Map<string, Stored>()
  for (const { id } of [...threads].sort((a, b) => (a.id < b.id ? -1 : 1)))
    stored.set(id, (await ask(`/kvfold/threads/${id}/export`)).body as Stored)
  return stored
}

/** Returns what is missing of an acknowledged operation. */
async function missing(
  what: Acknowledged,
  threads: ReadonlyMap<string, Stored>,
  deleted: ReadonlySet<string>,
  ask: Ask,
): Promise<string[]> {
  if (what.kind === 'deletion') return []
  if (what.kind === 'response') {
    const { status, body } = await ask(`/v1/responses/${what.id}`)
    const { output, previous_response_id: previous } = body as {
      output?: { content: { text: string }[] }[]
      previous_response_id?: string | null
    }
    const isThere = status === 200 && output?.[0]?.content[0]?.text === what.said && previous === what.previous
    return isThere ? [] : [`response ${what.id} is lost: ${status} ${JSON.stringify(body).slice(0, 200)}`]
  }
  if (deleted.has(what.thread)) return []
  const stored = threads.get(what.thread)
  if (stored === undefined) return [`thread ${what.thread} is lost, with an acknowledged ${what.kind}`]
  if (what.kind === 'answer') {
    const said = stored.messages.map(({ message: { role, content } }) => ({ role, content }))
    const isThere = what.messages.every(({ role, content }, at) => said[at]?.role === role && said[at].content === content)
    return isThere
      ? []
      : [`of thread ${what.thread} the acknowledged messages up to ${what.messages.length} are not what was acknowledged`]
  }
  const { body } = await ask(`/kvfold/threads/${what.thread}`)
  const { messages } = body as { messages: { shown: string }[] }
  return messages[0]?.shown.includes('Line 10:') === true ? [`fold ${what.fragment} of thread ${what.thread} is lost`] : []
}

/** Checks that a thread has each question once, with one answer, or none at the end. */
function twiceIn({ id, messages }: Stored): string[] {
  const wrong: string[] = []
  const roles = messages.map(({ message }) => message.role)
  for (const [at, role] of roles.entries())
    if (role !== (at % 2 === 0 ? 'user' : 'assistant')) wrong.push(`thread ${id} has ${role} at place ${at}`)
  const questions = messages.filter(({ message }) => message.role === 'user').map(({ message }) => message.content)
  if (new Set(questions).size < questions.length) wrong.push(`thread ${id} has a question twice`)
  return wrong
}

/** Counts the answers made in each thread, without those copied into forks. There may be as many as the question had attempts. */
function twiceAmong(threads: readonly Stored[], { attempts }: Client): string[] {
  const made = new Map<string, number>()
  for (const { messages, ledger } of threads) {
    const own = ledger.filter(({ kind }) => kind === 'answer').length
    const answers = messages.flatMap(({ message }, at) => (message.role === 'assistant' ? [at] : []))
    for (const at of answers.slice(answers.length - own)) {
      const question = messages[at - 1]!.message.content
      made.set(question, (made.get(question) ?? 0) + 1)
    }
  }
  return [...made]
    .filter(([question, count]) => count > (attempts.get(question) ?? 0))
    .map(([question, count]) => `${count} answers are stored to a question that was asked ${attempts.get(question) ?? 0} times`)
}

/** Words that an error must have to tell a client what to do. */
const ADVICE = /\b(ask again|try again|start (one|the engine)|name another|waiting|wait)\b/iu

/** Checks that the message gives advice, and that a 503 says when to come again. */
const saysWhatToDo = ({ status, message, retryAfter }: Refused): boolean =>
  ADVICE.test(message) && (status !== 503 || retryAfter !== null)
