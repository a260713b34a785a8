/** The agents whose context is made smaller without any skill of the model: by the server's rule, or by a summary on a fixed instruction. */
import Type from 'typebox'
import { plain } from '../../runtime/agents/sculptor.js'
import type { ChatMessage } from '../../runtime/chat/message.js'
import { strict } from '../../runtime/core/schema.js'
import { writeJson } from '../../runtime/core/written-json.js'
import { FOLD_DEFAULTS, foldByPolicy, foldPrice } from '../../runtime/server/threads/policies.js'
import { type AgentDefinition, answered, count, SampleEngine, takeTurn } from './define.js'

/** Tokens; or, up to 1, a share of the sample's prompt. */
const Budget = Type.Number({ exclusiveMinimum: 0, default: 0.75 })
const budgetOf = (budget: number, prompt: number): number => Math.ceil(budget <= 1 ? budget * prompt : budget)

// The agent for which the server's `auto-policy` folds tool results. The model only answers.

const PolicyOptions = strict({
  /** The context that the rule reckons with. */
  budget: Budget,
  /** The share of it that the prompt must exceed. */
  threshold: Type.Number({ minimum: 0, maximum: 1, default: FOLD_DEFAULTS.threshold }),
  /** How many later answers make a result old. */
  olderThanTurns: Type.Integer({ minimum: 0, default: FOLD_DEFAULTS.olderThanTurns }),
  /** Tokens from which a result counts as large, whatever its age. */
  largerThanTokens: count(FOLD_DEFAULTS.largerThanTokens),
})

export const policy: AgentDefinition<typeof PolicyOptions> = {
  kind: 'policy',
  title: 'Server policy',
  options: PolicyOptions,
  answer: async (engine, setting, { budget, ...rule }) => {
    const { messages } = setting.sample
    const { generation } = engine
    const session = plain({
      engine,
      id: engine.conversation('turn'),
      generation: { ...generation, maxTokens: setting.task.maxTokens },
    })
    const { conversation } = session
    // First the model reads everything up to its last message. So the rule folds text that is in the cache, and the contract decides the price.
    const last = messages.findLastIndex(({ role }) => role === 'assistant')
    const read = last < 1 ? [] : [await engine.ask('turn', messages.slice(0, last), { maxTokens: 1 })]
    for (const message of messages) conversation.add(message)
    const window = budgetOf(budget, engine.count(messages, []))
    const price = foldPrice(
      { ledger: read.map(({ ledger }) => ledger), events: [], conversation },
      generation.contract ?? null,
      null,
    )
    const reckoning = new SampleEngine({ ...setting, engine, window })
    const folded = foldByPolicy({ engine: reckoning, conversation, tools: [] }, rule, price)
    const outcome = await takeTurn(session, engine, setting.signal)
    return { ...outcome, details: { folded: folded?.fragments.length ?? 0, saved: folded?.saves ?? 0 } }
  },
}

// The agent that replaces older messages by a summary of its own, once, and answers from that and the newest messages.

const INSTRUCTION =
  'Summarise the conversation below. Your summary will stand in its place, and you will go on from it alone: keep every name, value and ' +
  'instruction that is still needed.'

const SummaryOptions = strict({
  /** Above it older messages are summarised, so many that the newest ones take at most half of it. */
  budget: Budget,
  /** The most tokens of the summary. */
  summaryTokens: count(256),
  /** The words that ask for the summary. */
  instruction: Type.String({ default: INSTRUCTION }),
})

export const summary: AgentDefinition<typeof SummaryOptions> = {
  kind: 'summary',
  title: 'Summary',
  options: SummaryOptions,
  answer: async (engine, { sample, task }, { budget, summaryTokens, instruction }) => {
    const { messages } = sample
    const behind = (text: string, from: number): readonly ChatMessage[] => [
      { role: 'user', content: `Summary of the conversation so far:\n${text}` },
      ...messages.slice(from),
    ]
    const answer = (shown: readonly ChatMessage[]) => engine.ask('answer', shown, { maxTokens: task.maxTokens })
    const whole = engine.count(messages, [])
    const most = budgetOf(budget, whole)
    // A result stays with its call, and the question is never summarised.
    const cuts = messages.flatMap(({ role }, at) => (at > 0 && role !== 'tool' ? [at] : []))
    const cut = cuts.find((at) => engine.count(behind('', at), []) <= most / 2) ?? cuts.at(-1)
    if (whole <= most || cut === undefined) return answered(await answer(messages), { summarised: 0 })
    const older = messages.slice(0, cut).map(lineOf).join('\n\n')
    const request = `${instruction}\n\n<conversation>\n${older}\n</conversation>`
    const { message, finish } = await engine.ask('summary', [{ role: 'user', content: request }], { maxTokens: summaryTokens })
    return answered(await answer(behind(message.content, cut)), {
      summarised: cut,
      summaryTokens: engine.countText(message.content),
      summariesCutOff: Number(finish === 'length'),
    })
  },
}

/** As text behind the instruction: a small model that is asked after real calls writes another call, or copies the first message. */
const lineOf = ({ role, content, toolCalls = [] }: ChatMessage): string =>
  `${role}: ${[...(content === '' ? [] : [content]), ...toolCalls.map((call) => `${call.name} ${writeJson(call.arguments)}`)].join(' ')}`
