/** Owns one thread as the book has it at all times: enough to match and list it; its messages are loaded when somebody needs them. */
import type { ListedThread, ThreadCard } from '../../store/port.js'
import { Chain } from './chain.js'
import { Kept } from './kept.js'
import type { Candidate } from './match.js'
import { ShownSteps } from './shown-steps.js'
import type { Thread } from './thread.js'

/** What is known of a thread whether it is loaded or not. */
export type Known = Pick<
  Thread,
  'tenant' | 'id' | 'model' | 'created' | 'used' | 'parent' | 'contract' | 'asked' | 'chain' | 'card'
>

export class BookEntry implements Known, Candidate {
  readonly kept: Kept
  /** Null while its messages are in the store alone. */
  #thread: Thread | null
  #listed: ListedThread
  #chain: Chain

  /** @param of a thread as the store lists it, or one that is loaded */
  constructor(of: ListedThread | Thread) {
    const isLoaded = 'kept' in of
    this.kept = isLoaded ? of.kept : new Kept()
    this.#thread = isLoaded ? of : null
    this.#listed = isLoaded ? listed(of) : of
    this.#chain = new Chain(this.#listed.card.chain)
  }

  get thread(): Thread | null {
    return this.#thread
  }

  /** From now on the thread itself says what it is. */
  load(thread: Thread): void {
    this.#thread = thread
  }

  /** Lets the messages go; nobody may use the thread any more, and all of it must be in the store. */
  putAway(): void {
    if (this.#thread === null) return
    this.#listed = listed(this.#thread)
    this.#chain = new Chain(this.#listed.card.chain)
    this.#thread = null
  }

  /** Lets go of a thread that is not what is stored: the entry is what it was when the thread was loaded, until it is loaded again. */
  discard(): void {
    this.#thread = null
    this.kept.shown = new ShownSteps()
  }

  get tenant(): string {
    return this.#listed.tenant
  }

  get id(): string {
    return this.#listed.id
  }

  get model(): string {
    return this.#listed.model
  }

  get created(): number {
    return this.#listed.created
  }

  get parent(): string | null {
    return this.#listed.parent
  }

  get used(): number {
    return (this.#thread ?? this.#listed).used
  }

  get contract(): ListedThread['contract'] {
    return (this.#thread ?? this.#listed).contract
  }

  get card(): ThreadCard {
    return (this.#thread ?? this.#listed).card
  }

  get chain(): Chain {
    return this.#thread?.chain ?? this.#chain
  }

  get asked(): boolean {
    return this.#thread?.asked ?? false
  }
}

const listed = ({ tenant, id, model, created, used, parent, contract, card }: Thread): ListedThread => ({
  ...{ tenant, id, model, created, used, parent, contract, card },
})
