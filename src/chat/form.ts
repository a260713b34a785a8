/** The form in which a template takes messages, tools and calls. */

/** How a template wants its messages; found out once, by trying (capabilities.ts). */
export interface Form {
  /** `merged`: the template knows no system role, so the first user message opens with the system's text. */
  readonly system: 'native' | 'merged'
  /** What templates that want to be told see when there are no tools. */
  readonly absent: 'none' | 'undefined'
  /** `described`: the template ignores tools, so the system message describes them. */
  readonly tools: 'native' | 'described'
  /** Arguments as an object or as JSON text; `text`: the template ignores calls, so they are written into the content. */
  readonly calls: 'object' | 'string' | 'text'
  /** `split`: the template takes one call a message, so a message with several becomes several. */
  readonly parallel: 'together' | 'split'
  /** `user`: the template knows no tool role, so results are user messages. */
  readonly results: 'native' | 'user'
  /** `nine`: call ids must be nine letters and digits. */
  readonly ids: 'free' | 'nine'
  /** `either`: a message with calls may have content or reasoning, so its reasoning is left out when it has both. */
  readonly reasoning: 'both' | 'either'
  /** `space`: the template refuses answers without content and calls, so they are shown as one space. */
  readonly empty: 'kept' | 'space'
  /** True when neighbouring messages of one role must be one. */
  readonly merge: boolean
}

export const nativeForm: Form = {
  system: 'native',
  absent: 'none',
  tools: 'native',
  calls: 'object',
  parallel: 'together',
  results: 'native',
  ids: 'free',
  reasoning: 'both',
  empty: 'kept',
  merge: false,
}
