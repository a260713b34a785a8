/**
 * Which tool a model calls. Definitions are at the top of the text, or late, in the result of the search that found them. Some tools were
 * removed: with the marker that says so, with a marker that says nothing, and with a grammar that allows only loaded tools (the mask). A
 * base model continues a transcript of searches and calls greedily, from where a call's name begins. The control is how it calls loaded
 * tools. Prints a table; with --write it also writes a record.
 * `npm run --silent bench -- tool-calls [--samples 16] [--seed 2026] [--model path] [--json] [--write name]`; `npm run models:real` makes
 * the model.
 */
import { existsSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import type { ChatMessage } from '../../src/runtime/chat/message.js'
import { Conversation } from '../../src/runtime/context/conversation.js'
import { conversationId, freshConversation } from '../../src/runtime/core/ids.js'
import { span } from '../../src/runtime/core/span.js'
import { type CompanyFigure, metrics, World, YEARS } from '../../src/lab/memtool/companies.js'
import { count, percent } from '../../src/runtime/figures/numbers.js'
import { left, right, table, terminal, type Table } from '../../src/runtime/figures/table.js'
import type { Prompt } from '../../src/runtime/kv/prompt.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { LateDefinitions, lineOf } from '../../src/runtime/tools/late-definitions.js'
import { SETTINGS, Stage } from './contracts/stage.js'
import { EXACT, SPLICE } from './contracts/variants.js'
import { Watch } from './contracts/watch.js'
import { beginRecord, keep, OPTIONS, SEED } from '../record.js'

const CELLS = 8192
/** Writes the texts one below the other. The model has no chat template, so calls are part of the text. */
const PLAIN = '{{ bos_token }}{% for message in messages %}{{ message.content }}\n{% endfor %}'
/** `OPENING`: a call up to its name. `LONGEST`: the most tokens of a name. */
const OPENING = 'Call: {"name": "'
const LONGEST = 32
const TOP = 'There are thousands of tools. Loaded tools can be called; others are found and loaded with search_tools.'

/**
 * What happens to the first definitions. `stay`: nothing. `erratum`: removed, with the normal marker. `silent`: removed, with a marker
 * without words.
 */
type Removal = 'stay' | 'erratum' | 'silent'

interface Setting {
  readonly definitions: 'late' | 'top'
  readonly removal: Removal
  readonly contract: 'exact' | 'splice'
}
const SETTINGS_OF_TOOLS: readonly Setting[] = [
  { definitions: 'top', removal: 'stay', contract: 'exact' },
  { definitions: 'late', removal: 'stay', contract: 'exact' },
  { definitions: 'late', removal: 'erratum', contract: 'exact' },
  { definitions: 'late', removal: 'silent', contract: 'exact' },
  { definitions: 'late', removal: 'erratum', contract: 'splice' },
]

/**
 * Which tool the last request needs: one of the first tools that was called, one of these that was not called, or one that was loaded after
 * them and not called yet.
 */
const ASKED = ['called before', 'never called', 'loaded last'] as const
type Asked = (typeof ASKED)[number]

interface Session {
  readonly before: Prompt
  readonly after: Prompt
  /** `loaded`: names of the tools loaded at the end. `removed`: names of the removed tools. */
  readonly loaded: readonly string[]
  readonly removed: readonly string[]
  readonly wanted: string
}

function sessionOf(stage: Stage, world: World, at: number, { definitions, removal }: Setting, asked: Asked): Session {
  const { format } = stage.engine
  const [company, second] = [world.companies[2 * at]!, world.companies[2 * at + 1]!]
  const figure = (index: number, of: typeof company): CompanyFigure => {
    const metric = metrics[index]!
    return { company: of, metric, ...(world.takesYear(metric) ? { year: YEARS[at % YEARS.length]! } : {}) }
  }
  const definition = (one: CompanyFigure) => world.tools.find(({ name }) => name === world.callOf(one).name)!
  // The five tools of a company take each role in turn, by sample.
  const around = (of: typeof company) => metrics.map((_, index) => figure((index + at) % metrics.length, of))
  const [first, next, third, never] = around(company) as [CompanyFigure, CompanyFigure, CompanyFigure, CompanyFigure]
  const [last, beside, loaded] = around(second) as [CompanyFigure, CompanyFigure, CompanyFigure]
  const mine = around(company).map(definition)
  const others = [last, beside, loaded].map(definition)
  const conversation = new Conversation(conversationId('calls'), {
    snap: (messages, message, chars) => format.snap({ messages, tools: [], message, chars }),
  })
  const add = (message: ChatMessage) => {
    conversation.add(message)
  }
  const ask = ({ metric, company: { name }, year }: CompanyFigure) => {
    add({ role: 'user', content: `User: What is the ${metric} of ${name}${year === undefined ? '' : ` in ${year}`}?` })
  }
  const call = (name: string, given: Readonly<Record<string, unknown>>, result: string) => {
    const id = `c${conversation.messages.length}`
    const content = `${OPENING}${name}", "arguments": ${JSON.stringify(given)}}`
    add({ role: 'assistant', content, toolCalls: [{ id, name, arguments: given }] })
    add({ role: 'tool', content: `Result: ${result}`, name, toolCallId: id })
  }
  const look = (one: CompanyFigure, found: readonly CompanyFigure[]) => {
    const lines = definitions === 'late' ? found.map(definition).map(lineOf) : []
    call(
      'search_tools',
      { keywords: [`${one.company.name} ${one.metric}`] },
      [`${found.length} tools added.`, ...lines].join('\n'),
    )
  }
  const answer = (one: CompanyFigure) => {
    const { name, arguments: given } = world.callOf(one)
    call(name, given, world.value(one))
    add({ role: 'assistant', content: `Answer: ${world.value(one)}.` })
  }
  const shown = definitions === 'top' ? [...mine, ...others].map(lineOf) : []
  add({ role: 'system', content: [TOP, ...shown].join('\n') })
  ask(first)
  look(first, around(company))
  for (const one of [first, next, third]) {
    if (one !== first) ask(one)
    answer(one)
  }
  const prompt = () => promptOf(stage, conversation)
  const before = prompt()
  hide(conversation, mine, removal)
  ask(last)
  look(last, [last, beside, loaded])
  answer(last)
  ask(beside)
  answer(beside)
  const wanted = asked === 'called before' ? first : asked === 'never called' ? never : loaded
  ask(wanted)
  const names = mine.map(({ name }) => name)
  const here = others.map(({ name }) => name)
  return {
    ...{ before, after: prompt(), wanted: world.callOf(wanted).name },
    ...(removal === 'stay' ? { loaded: [...names, ...here], removed: [] } : { loaded: here, removed: names }),
  }
}

function hide(conversation: Conversation, tools: World['tools'], removal: Removal): void {
  if (removal === 'stay') return
  if (removal === 'erratum') {
    new LateDefinitions(conversation, { restores: true }).hide(tools)
    return
  }
  const message = conversation.messages.findIndex(({ content }) => content.includes(lineOf(tools[0]!)))
  const { content } = conversation.messages[message]!
  const places = tools.map((tool) => {
    const start = content.indexOf(lineOf(tool))
    return { message, span: span(start, start + lineOf(tool).length), marker: '(...)' }
  })
  if (!conversation.replace(places).ok) throw new Error('definitions were not hidden')
}

function promptOf({ engine }: Stage, conversation: Conversation): Prompt {
  const { tokens, origin } = engine.format.render({ messages: conversation.messages, edits: conversation.edits() })
  return { tokens, origin, messages: [{ index: 0, role: 'text', span: { start: 0, end: tokens.length } }] }
}

/** Asks one conversation after another under one setting, so that their common text is computed once. */
class Caller {
  readonly #conversation = freshConversation()
  #begun = false

  constructor(
    private readonly stage: Stage,
    private readonly contract: Setting['contract'],
  ) {}

  /** Returns the name of the tool that the model calls. `masked`: a grammar allows only loaded tools. */
  async nameIn({ before, after, loaded }: Session, masked: boolean): Promise<string> {
    const terms = this.contract === 'exact' ? EXACT : SPLICE
    // Under `exact`, earlier steps in the cache make no difference.
    if (!this.#begun && this.contract === 'splice') await this.stage.show(this.#conversation, before, terms)
    this.#begun = true
    const { model } = this.stage.engine
    const opening = model.tokenize(OPENING)
    const longer = (of: Int32Array) => Int32Array.from([...of, ...opening])
    const { tokens } = await this.stage.engine.complete({
      ...{ conversation: this.#conversation, terms, maxTokens: LONGEST, sampling: { temperature: 0 } },
      tokens: longer(after.tokens),
      ...(after.origin === undefined ? {} : { origin: { ...after.origin, base: longer(after.origin.base) } }),
      ...(masked ? { grammar: `root ::= (${[...loaded, 'search_tools'].map((name) => `"${name}"`).join(' | ')}) "\\""` } : {}),
    })
    return model.detokenize(tokens).split('"', 1)[0]!
  }

  async end(): Promise<void> {
    await this.stage.forget(this.#conversation)
  }
}

const OUTCOMES = ['wanted', 'search_tools', 'ghost', 'other'] as const
type Outcome = (typeof OUTCOMES)[number]

function outcomeOf(name: string, { wanted, removed, loaded }: Session): Outcome {
  if (removed.includes(name)) return 'ghost'
  if (name === wanted && loaded.includes(name)) return 'wanted'
  return name === 'search_tools' ? 'search_tools' : 'other'
}

interface Row extends Setting {
  readonly asked: Asked
  readonly masked: boolean
  readonly samples: number
  readonly outcomes: Readonly<Record<Outcome, number>>
}

export async function toolCalls(args: readonly string[]): Promise<void> {
  const folder = process.env['KVFOLD_REAL_MODELS'] ?? join(homedir(), '.cache', 'kvfold', 'real')
  const { values } = parseArgs({
    args: [...args],
    options: {
      ...OPTIONS,
      ...SEED,
      model: { type: 'string', default: join(folder, 'gemma-3-270m-q4_k_m.gguf') },
      samples: { type: 'string', default: '16' },
    },
  })
  const { model } = values
  if (!existsSync(model)) throw new Error(`${model} is not there; npm run models:real makes it, or name another with --model.`)
  const [samples, seed] = [Number(values.samples), Number(values.seed)]
  const watch = new Watch()
  const native = await openNative({ gpu: 'cpu' })
  const origin = beginRecord(['tool-calls', ...args], model, native.backend.release, SETTINGS.threads)
  const stage = await Stage.open(native, model, CELLS, PLAIN)
  const world = new World({ seed, tools: 10 * samples, arguments: true })
  const found = new Map<string, { readonly about: Omit<Row, 'samples' | 'outcomes'>; readonly outcomes: Outcome[] }>()
  for (let at = 0; at < samples && !watch.over(); at++)
    for (const setting of SETTINGS_OF_TOOLS) {
      const caller = new Caller(stage, setting.contract)
      for (const asked of ASKED) {
        watch.say(`sample ${at + 1} of ${samples}: ${Object.values(setting).join(', ')}, ${asked}`)
        const session = sessionOf(stage, world, at, setting, asked)
        for (const masked of setting.removal === 'stay' ? [false] : [false, true]) {
          const about = { ...setting, asked, masked }
          const key = JSON.stringify(about)
          const name = await caller.nameIn(session, masked)
          if (process.env['KVFOLD_DEBUG'] !== undefined) console.error(key, session.wanted, '->', name)
          found.set(key, { about, outcomes: [...(found.get(key)?.outcomes ?? []), outcomeOf(name, session)] })
        }
      }
      await caller.end()
    }
  watch.end()
  await stage.engine.dispose()
  const rows = [...found.values()].map(({ about, outcomes }): Row => {
    const counted = OUTCOMES.map((outcome) => [outcome, outcomes.filter((one) => one === outcome).length] as const)
    return { ...about, samples: outcomes.length, outcomes: Object.fromEntries(counted) as Row['outcomes'] }
  })
  const result = { ...origin(), seed, rows }
  await keep(values.write, result)
  console.log(values.json ? JSON.stringify(result) : terminal(tableOf(rows)).join('\n'))
}

function tableOf(rows: readonly Row[]): Table {
  const titles = [left('definitions'), left('removed'), left('contract'), left('asked for'), left('mask'), right('sessions')]
  const lines = rows.map(({ definitions, removal, contract, asked, masked, samples, outcomes }) => [
    ...[definitions, removal === 'stay' ? 'no' : removal, contract, asked, masked ? 'yes' : 'no', count(samples)],
    ...OUTCOMES.map((outcome) => percent(outcomes[outcome] / samples, 0)),
  ])
  const opens = (row: readonly string[], before: readonly string[]) => row.slice(0, 3).join() !== before.slice(0, 3).join()
  return table([...titles, ...['wanted', 'search_tools', 'removed one', 'other'].map(right)], lines, { opens })
}
