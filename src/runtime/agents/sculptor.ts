/** The agents `plain` (no tools) and `sculptor` (manages its own context), and the system prompts for them. */
import { Session, type SessionOptions } from './session.js'

/** `system` is the caller's own prompt. Without it, `prompt` names a built-in one; default `general`. */
export type SculptorOptions = Omit<SessionOptions, 'contextTools'> & { readonly prompt?: SystemPrompt }

/** Makes a session whose model has the context tools (Sculptor, sections 2 and 4). */
export function sculptor({ prompt = 'general', ...options }: SculptorOptions): Session {
  return new Session({ system: systemPrompts[prompt], ...options, contextTools: true })
}

// The agent without tools. Its prompt is the messages alone, plus a system message if the caller gives one.

export type PlainOptions = Omit<SessionOptions, 'contextTools' | 'firstStep' | 'maxCalls' | 'clientTools'>

export function plain(options: PlainOptions): Session {
  return new Session({ ...options, contextTools: false })
}

// The system prompts: one for any task, and one for each kind of task that needs a strategy.

export const systemPrompts = {
  /** For any task. Says what the tools can do but gives no strategy, like the unified prompt of the paper (Sculptor, D.2). */
  general:
    'You are a helpful assistant who looks after your own context with tools. You can fold what does not matter, so that you ' +
    'see less of it, put summaries in the place of long passages, restore what you need again, and search the whole ' +
    'conversation for exact words, folded parts included. Keep what you see short and to the point, then answer.',

  /**
   * For updates of many values. Strategy: cut into fragments, fold the old ones, answer (same meaning as Sculptor, D.1). The built-in
   * model was trained on this text: change it only with new weights.
   */
  'pi-llm':
    'You keep track of values that are updated again and again. Only the last value of a key counts, and older values get in ' +
    'the way. First call fragment_context to cut the stream of updates into fragments. Then call fold_fragment for the older ' +
    'fragments and leave the newest open. Then answer from what is still shown.',

  /** For chains of facts in a long text. Strategy: search one name after the other until the chain ends (as in Sculptor, D.1). */
  needles:
    'You trace how people are related. The facts are single sentences scattered through a long text. Call search_context with a ' +
    'name to find the sentences about that person, and get_search_detail to read more around one. Follow the chain from person ' +
    'to person, one search a name. Before you name the eldest, search for that name too and make sure that the text gives no ' +
    'elder. Then answer.',

  /** For finding one of several similar texts. Strategy: search their common title, then read the wanted one. */
  similar:
    'You find one of several similar texts again. Call search_context for the title that they share, among the messages of the ' +
    'assistant. The matches come in the order in which the texts were written. Call get_search_detail for the one that is ' +
    'asked for. Then repeat it to the letter.',
} as const

export type SystemPrompt = keyof typeof systemPrompts
