/** What an edit of the context promises about the cache (docs/contracts.md). */

/**
 * `exact`: the cache equals a fresh prefill of the shown tokens. `splice`: hidden tokens cannot be attended to, and the text after them keeps
 * the values it had, which carry their trace. `blend`: a splice, after which chosen spans of that text are computed again.
 */
export const CONTRACTS = ['exact', 'splice', 'blend'] as const
export type Contract = (typeof CONTRACTS)[number]

/** `auto`: a splice at once, and made exact again when nothing else is to do. */
export type ContractChoice = Contract | 'auto'

export const CONTRACT_CHOICES = [...CONTRACTS, 'auto'] as const satisfies readonly ContractChoice[]

/** Stands in an unedited prompt in the place of every token of a text that is to be forgotten: so no version that holds it is a version of this prompt. */
export const FORGOTTEN = -1

/** What a step under this choice keeps to. */
export const contractOfStep = (choice: ContractChoice): Contract => (choice === 'auto' ? 'splice' : choice)
