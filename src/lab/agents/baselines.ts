/**
 * Three agents that handle a long text without folds. `archive` searches older chunks, `files` reads a file, `edit-text` edits the text.
 */
import Type, { type Static, type TObject } from 'typebox'
import { MAX_CALLS, Session } from '../../runtime/agents/session.js'
import { type ClientTool, tried } from '../../runtime/agents/toolbox.js'
import type { ChatMessage, ToolDefinition } from '../../runtime/chat/message.js'
import { failure } from '../../runtime/context/tools.js'
import { allInWords, checked, strict } from '../../runtime/core/schema.js'
import type { AgentSetting, Answered, CalledTool } from '../agent.js'
import { type AgentDefinition, answered, count, type SampleEngine, takeTurn } from './define.js'
import { LongText, sentencesOf } from './long-text.js'
import { bestFirst, Bm25, wordsOf } from './rag.js'

const turnOptions = {
  /** The most tool calls in the turn. */
  maxCalls: count(MAX_CALLS),
  /** Whether the first step must call a tool (`required`) or may answer at once (`auto`). */
  firstStep: Type.Enum(['required', 'auto'], { default: 'required' }),
}
type TurnSettings = Static<TObject<typeof turnOptions>>

/** Makes a tool. If the arguments break the schema, the call fails with a message that names the faults. */
const toolOf = <Arguments extends TObject>(
  name: string,
  description: string,
  parameters: Arguments,
  execute: (given: Static<Arguments>) => string,
): ClientTool => ({
  definition: { name, description, parameters: parameters as unknown as ToolDefinition['parameters'] },
  execute: (given) => {
    const read = checked(parameters, given)
    if (read.ok) return execute(read.value)
    throw new Error(`${allInWords(read.faults, 'the arguments')}.`)
  },
})

/** Answers a user message with this content, in one turn with these tools. */
async function answerWith(
  engine: SampleEngine,
  setting: AgentSetting,
  content: string,
  tools: readonly ClientTool[],
  { maxCalls, firstStep }: TurnSettings,
): Promise<Answered> {
  const session = new Session({
    engine,
    id: engine.conversation('turn'),
    contextTools: false,
    clientTools: tools,
    ...{ maxCalls, firstStep },
    generation: { ...engine.generation, maxTokens: setting.task.maxTokens },
  })
  session.conversation.add({ role: 'user', content })
  return takeTurn(session, engine, setting)
}

// The agent `archive`. The older chunks of the text are in an archive. The model sees the newest chunks, and searches for older ones.

const ArchiveOptions = strict({
  /** Tokens of one chunk. */
  chunkTokens: count(200),
  /** The newest chunks are shown, as many as fit into this many tokens together. */
  shownTokens: count(400),
  /** How many chunks a search returns. */
  recalled: count(2),
  ...turnOptions,
})

export const archive: AgentDefinition<typeof ArchiveOptions> = {
  kind: 'archive',
  title: 'Archive and recall',
  options: ArchiveOptions,
  answer: async (engine, setting, { chunkTokens, shownTokens, recalled, ...turn }) => {
    const { context, question } = setting.sample
    const parts = await new LongText(context, engine).chunks(chunkTokens)
    let [first, shown] = [parts.length, 0]
    while (first > 0 && shown + parts[first - 1]!.tokens <= shownTokens) shown += parts[--first]!.tokens
    const textOf = (part: number) => `Part ${part + 1} of ${parts.length}:\n${parts[part]!.text.trim()}`
    const older = parts.slice(0, first).map(({ text }) => wordsOf(text))
    const recall = toolOf(
      'recall',
      'Searches the older parts of the text, which are in an archive, and returns those that have most of the words of the query.',
      strict({ query: Type.String({ description: 'Words of the passage, such as a name.' }) }),
      ({ query }) => {
        const scores = new Bm25(older, { positive: true }).scores(wordsOf(query))
        const found = bestFirst(scores).filter((part) => scores[part]! > 0)
        if (found.length === 0) return 'No older part has these words.'
        return found
          .slice(0, recalled)
          .sort((one, other) => one - other)
          .map(textOf)
          .join('\n\n')
      },
    )
    const newest = parts.slice(first).map((_, at) => textOf(first + at))
    const archived =
      first === 0
        ? []
        : [
            `Parts 1 to ${first} of a text of ${parts.length} parts are in an archive. Call recall to search them. The later a part, the newer it is.`,
          ]
    const outcome = await answerWith(
      engine,
      setting,
      [...archived, ...newest, question].join('\n\n'),
      first === 0 ? [] : [recall],
      turn,
    )
    return { ...outcome, details: { parts: parts.length, archived: first } }
  },
}

// The agent `files`. The text is a file, and the model sees only what it reads or finds by search.

const FilesOptions = strict({
  /** The most lines that one call returns. A line is a sentence. */
  lines: count(20),
  ...turnOptions,
})

const FILE = 'text.txt'

export const files: AgentDefinition<typeof FilesOptions> = {
  kind: 'files',
  title: 'Plain files',
  options: FilesOptions,
  answer: async (engine, setting, { lines: most, ...turn }) => {
    const { context, question } = setting.sample
    const lines = linesOf(context)
    const numbered = (at: readonly number[]) =>
      [
        ...at.slice(0, most).map((line) => `${line + 1}: ${lines[line]!}`),
        ...(at.length > most ? [`(${at.length - most} more lines)`] : []),
      ].join('\n')
    const tools = [
      toolOf(
        'read_file',
        `Returns the lines of ${FILE} from one number to another, at most ${most} of them.`,
        strict({ from: Type.Integer({ minimum: 1 }), to: Type.Integer({ minimum: 1 }) }),
        ({ from, to }) => {
          const wanted = lines.flatMap((_, at) => (at + 1 >= from && at + 1 <= to ? [at] : []))
          return wanted.length === 0 ? `${FILE} has the lines 1 to ${lines.length}.` : numbered(wanted)
        },
      ),
      toolOf(
        'search_file',
        `Returns the lines of ${FILE} that contain a text, with their numbers, at most ${most} of them. Capitals do not matter.`,
        strict({ text: Type.String({ minLength: 1 }) }),
        ({ text }) => {
          const found = lines.flatMap((line, at) => (line.toLowerCase().includes(text.toLowerCase()) ? [at] : []))
          return found.length === 0 ? 'No line contains this text.' : numbered(found)
        },
      ),
    ]
    const content = `A text is in the file ${FILE}, which has ${lines.length} lines. The later a line, the newer it is.\n\n${question}`
    return { ...(await answerWith(engine, setting, content, tools, turn)), details: { lines: lines.length } }
  },
}

// The agent `edit-text`. The model sees the text with numbered lines, and edits it before it answers (Context Language Models).

const EditOptions = strict(turnOptions)

export const editText: AgentDefinition<typeof EditOptions> = {
  kind: 'edit-text',
  title: 'Edits the text',
  options: EditOptions,
  answer: async (engine, { sample, task, signal, onCall }, { maxCalls, firstStep }) => {
    let lines = linesOf(sample.context).map((text) => ({ text }))
    /** The lines as last shown to the model. The line numbers in all edits of one reply refer to them. */
    let seen: readonly (typeof lines)[number][] = lines
    const [from, to] = [Type.Integer({ minimum: 1 }), Type.Integer({ minimum: 1 })]
    const replaced = (first: number, last: number, by: readonly string[]): string => {
      if (first > last || last > seen.length)
        throw new Error(`the text has the lines 1 to ${seen.length}, and from is at most to.`)
      const old = new Set(seen.slice(first - 1, last))
      const at = lines.findIndex((line) => old.has(line))
      if (at < 0) throw new Error('another edit has changed these lines already.')
      const edited = lines.filter((line) => !old.has(line))
      lines = edited.toSpliced(at, 0, ...by.map((text) => ({ text })))
      return `The text has ${lines.length} lines now.`
    }
    const tools = [
      toolOf('delete_lines', 'Deletes lines of the text that do not matter.', strict({ from, to }), (given) =>
        replaced(given.from, given.to, []),
      ),
      toolOf(
        'replace_lines',
        'Writes one shorter line in place of lines of the text.',
        strict({ from, to, line: Type.String({ minLength: 1 }) }),
        (given) => replaced(given.from, given.to, [given.line]),
      ),
    ]
    const calls: CalledTool[] = []
    const shown = (said: string): readonly ChatMessage[] => [
      {
        role: 'user',
        content: [
          calls.length < maxCalls
            ? 'This is your context. You may edit it before you answer; you will then see it as you left it.'
            : 'This is your context as you left it. You can edit it no more; answer now.',
          lines.map(({ text }, at) => `${at + 1}: ${text}`).join('\n'),
          ...(said === '' ? [] : [`Your last edits: ${said}`]),
          sample.question,
        ].join('\n\n'),
      },
    ]
    const whole = lines.length
    let [said, refused] = ['', 0]
    for (;;) {
      const step = engine.steps
      seen = lines
      const reply = await engine.respond({
        conversation: engine.conversation('turn'),
        messages: shown(said),
        tools: tools.map(({ definition }) => definition),
        toolChoice: calls.length >= maxCalls ? 'none' : calls.length === 0 ? firstStep : 'auto',
        ...engine.generation,
        maxTokens: task.maxTokens,
        ...(signal === undefined ? {} : { signal }),
      }).reply
      const { toolCalls = [] } = reply.message
      const made = toolCalls.slice(0, maxCalls - calls.length)
      refused += toolCalls.length - made.length
      if (made.length === 0 || reply.finish === 'cancelled') {
        const end = reply.finish === 'cancelled' ? 'cancelled' : answered(reply, {}).end
        return { ...answered(reply, { lines: whole, left: lines.length }), end, calls, refusedCalls: refused }
      }
      said = ''
      for (const call of made) {
        const tool = tools.find(({ definition }) => definition.name === call.name)
        const { text, failed } =
          tool === undefined
            ? failure(`there is no tool ${call.name}.`)
            : await tried(call.name, () => tool.execute(call.arguments))
        const called = { step, name: call.name, failed, modifies: !failed }
        calls.push(called)
        onCall?.(called, false)
        said += said === '' ? text : ` ${text}`
      }
    }
  },
}

const linesOf = (text: string): string[] => sentencesOf(text).map((sentence) => sentence.trim().replaceAll('\n', ' '))
