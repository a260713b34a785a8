/** Two agents whose context is shortened without the model's decision: `policy` by the server's rule, `summary` at a fixed limit. */
import Type from 'typebox'
import { plain } from '../../runtime/agents/sculptor.js'
import type { ChatMessage } from '../../runtime/chat/message.js'
import { strict } from '../../runtime/core/schema.js'
import { atOnce } from '../../runtime/core/turns.js'
import { writeJson } from '../../runtime/core/written-json.js'
import { FOLD_DEFAULTS, foldByPolicy, foldPrice } from '../../runtime/server/threads/policies.js'
import { type AgentDefinition, answered, count, SampleEngine, takeTurn } from './define.js'

/** The schema of a budget. A value up to 1 is a share of the sample's prompt; a larger value is a number of tokens. */
const Budget = Type.Number({ exclusiveMinimum: 0, default: 0.75 })
const budgetOf = (budget: number, prompt: number): number => Math.ceil(budget <= 1 ? budget * prompt : budget)

// The agent `policy`. The server's `auto-policy` folds its tool results; the model only answers.

const PolicyOptions = strict({
  /** The context size that the policy assumes. */
  budget: Budget,
  /** The policy folds when the prompt has more than this share of the budget. */
  threshold: Type.Number({ minimum: 0, maximum: 1, default: FOLD_DEFAULTS.threshold }),
  /** A tool result is old when this many answers follow it. */
  olderThanTurns: Type.Integer({ minimum: 0, default: FOLD_DEFAULTS.olderThanTurns }),
  /** A tool result is large from this many tokens on. The policy folds large results of any age. */
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
    // Compute all messages before the last assistant message first. The policy then folds text that is in the cache, so the contract
    // decides what the fold costs.
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
    const folded = atOnce(foldByPolicy({ engine: reckoning, conversation, tools: [] }, rule, price))
    const outcome = await takeTurn(session, engine, setting)
    return { ...outcome, details: { folded: folded?.fragments.length ?? 0, saved: folded?.saves ?? 0 } }
  },
}

// The agent `summary`. The model summarises the older messages once, and then answers from the summary and the newest messages.

const INSTRUCTION =
  'Summarise the conversation below. Your summary will stand in its place, and you will go on from it alone: keep every name, value and ' +
  'instruction that is still needed.'

const SummaryOptions = strict({
  /** A prompt with more tokens is summarised. The newest messages stay unchanged, as many as fit into half of the budget. */
  budget: Budget,
  /** The most tokens of the summary. */
  summaryTokens: count(256),
  /** The instruction that asks for the summary. */
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
    // The summary may end before any message except a tool result, because a result must stay with its call. At least the last message
    // stays.
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

/**
 * Returns a message as one line of text for the summary's prompt. Given real tool calls, a small model would write another call or copy the
 * first message.
 */
const lineOf = ({ role, content, toolCalls = [] }: ChatMessage): string =>
  `${role}: ${[...(content === '' ? [] : [content]), ...toolCalls.map((call) => `${call.name} ${writeJson(call.arguments)}`)].join(' ')}`
