/** The contracts: what an edit of the context promises about the cache (docs/contracts.md). */

/**
 * `exact`: the cache equals a fresh prefill of the shown tokens. `splice`: hidden tokens cannot be attended to, and the text after them
 * keeps its old values, which carry the hidden text's trace. `blend`: a splice, after which chosen spans of that text are computed again.
 */
export const CONTRACTS = ['exact', 'splice', 'blend'] as const
export type Contract = (typeof CONTRACTS)[number]

/** `auto`: a splice at once, which is made exact again while the engine is idle. */
export type ContractChoice = Contract | 'auto'

export const CONTRACT_CHOICES = [...CONTRACTS, 'auto'] as const satisfies readonly ContractChoice[]

/** Replaces every token of a forgotten text in an unedited prompt. No sequence that holds the text then matches the prompt. */
export const FORGOTTEN = -1

/** The contract that a step under this choice keeps. */
export const contractOfStep = (choice: ContractChoice): Contract => (choice === 'auto' ? 'splice' : choice)
