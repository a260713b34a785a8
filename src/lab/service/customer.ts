/** Makes the customer's story at the order desk, turn by turn: new goals, changes of mind, and mistakes that the agent should notice. */
import { type Call, carryOut, COLOURS, type Desk, Draw, makeDesk, type RetailOrder } from './desk.js'

/** A call that looks something up. `yields`: the strings in its result that the turn needs. */
export interface Lookup {
  readonly call: Call
  readonly yields: readonly string[]
}

/** The wrong calls and words of an agent that looks nothing up, or that has lost the earlier turns. */
export interface CustomerMistake {
  readonly acts: readonly Call[]
  readonly says: readonly string[]
}

/** One turn: the customer's message, the right calls and the right answer. */
export interface Goal {
  readonly says: string
  readonly lookups: readonly Lookup[]
  readonly acts: readonly Call[]
  /** Strings that the answer must contain. */
  readonly told: readonly string[]
  /** The task that is still open, as a line of a to-do list. It may stay the same over several turns. */
  readonly todo: string
  /** A sentence about this turn, for the summaries that scripts write in later turns. */
  readonly note: string
  readonly constraint?: string
  /**
   * `careless`: the mistake of an agent that looks nothing up. `forgetful`: the mistake of an agent that has lost the earlier turns. Absent
   * if such an agent makes no mistake in this turn.
   */
  readonly careless?: CustomerMistake
  readonly forgetful?: CustomerMistake
}

export interface Story {
  readonly desk: Desk
  readonly goals: readonly Goal[]
}

export interface StoryOptions {
  readonly seed: number
  readonly turns: number
}

const call = (name: string, args: Call['arguments']): Call => ({ name, arguments: args })
const lookup = (found: Call, ...yields: string[]): Lookup => ({ call: found, yields })

/** Makes a story; the same options give the same one. Each turn starts from the state that the right calls of earlier turns leave. */
export function makeStory({ seed, turns }: StoryOptions): Story {
  const desk = makeDesk({ seed, orders: Math.max(6, turns + 2) })
  const now = structuredClone(desk)
  const draw = new Draw(seed, 1)
  const teller = new Teller(now, draw)
  const goals: Goal[] = []
  const add = (...more: readonly Goal[]) => {
    for (const goal of more) {
      if (goals.length === turns) return
      for (const act of goal.acts) carryOut(now, act)
      goals.push(goal)
    }
  }
  add(teller.greeting())
  // The kinds of requests rotate, so that a short story has most of them. The seed chooses which of the first three is first.
  const matters = [
    () => teller.exchange(),
    () => teller.mistake(),
    () => teller.address(),
    () => [teller.price()],
    () => [teller.again()],
    () => [teller.shipped()],
    () => [teller.recall()],
  ]
  for (let at = draw.below(3); goals.length < turns; at++) add(...matters[at % matters.length]!())
  return { desk, goals }
}

class Teller {
  #next = 0

  constructor(
    private readonly desk: Desk,
    private readonly draw: Draw,
  ) {}

  greeting(): Goal {
    const [first] = this.#orders
    const { name, email, customer_id } = this.#customer
    return {
      says: `Hello, this is ${name}, ${email}. Where is my order ${first!.order_id}?`,
      lookups: [
        lookup(call('find_customer', { email }), customer_id),
        lookup(call('get_shipment', { order_id: first!.order_id }), first!.tracking),
      ],
      acts: [],
      told: [first!.tracking],
      todo: `Tell where order ${first!.order_id} is.`,
      note: `${name} (customer ${customer_id}, ${email}) asked where order ${first!.order_id} is; get_shipment said ${first!.status}, and the customer was told.`,
    }
  }

  price(): Goal {
    const order = this.#order()
    const { name, price } = this.draw.of(order.items)
    const { order_id } = order
    return {
      says: `What did I pay for the ${name} in order ${order_id}?`,
      lookups: [lookup(call('get_order', { order_id }), String(price))],
      acts: [],
      told: [String(price)],
      todo: `Tell the price of the ${name} in ${order_id}.`,
      note: `The price of the ${name} in ${order_id} was told from get_order.`,
    }
  }

  address(): Goal[] {
    const order = this.#order('pending')
    const { order_id } = order
    const address = this.draw.address()
    const wanted = { todo: `Change the address of ${order_id} to ${address}.` }
    const act = call('change_address', { order_id, address })
    return [
      {
        ...wanted,
        says: `Please have order ${order_id} sent to ${address}.`,
        lookups: [lookup(call('get_order', { order_id }), order.address)],
        acts: [],
        told: [order_id, address],
        note: `${order_id} is to go to ${address} instead of ${order.address}; the customer was asked for a yes.`,
        careless: { acts: [act], says: [order_id, address] },
      },
      {
        ...wanted,
        says: 'Yes, please do that.',
        lookups: [lookup(call('get_order', { order_id }), order_id)],
        acts: [act],
        told: [order_id],
        note: `The address of ${order_id} was changed to ${address} by change_address.`,
        forgetful: { acts: [], says: ['What can I do for you?'] },
      },
    ]
  }

  exchange(): Goal[] {
    const order = this.#order('pending')
    const item = this.draw.of(order.items)
    const { variants } = this.desk.products.find(({ name }) => name === item.name)!
    const [wanted, better] = COLOURS.filter((colour) => colour !== item.colour)
    const cheap = (colour = '') => variants.find((one) => one.colour === colour)!
    const dear = (colour = '') => variants.findLast((one) => one.colour === colour)!
    const most = Math.ceil(Math.max(cheap(wanted).price, cheap(better).price)) + 1
    const { order_id } = order
    const constraint = `The ${item.name} must not cost more than ${most}.`
    const found = lookup(call('get_order', { order_id }), item.item_id)
    const act = (id: string) => call('exchange_item', { order_id, item_id: item.item_id, new_item_id: id })
    return [
      {
        says: `The ${item.name} in order ${order_id}: can I have it in ${wanted}? It must not cost more than ${most}.`,
        lookups: [found, lookup(call('find_products', { name: item.name }), cheap(wanted).item_id)],
        acts: [],
        told: [cheap(wanted).item_id],
        constraint,
        todo: `Exchange the ${item.name} (item ${item.item_id}) in ${order_id}.`,
        note: `The ${item.name} in ${order_id} (item ${item.item_id}) is to be exchanged, for at most ${most}; ${cheap(wanted).item_id} in ${wanted} was offered.`,
        careless: { acts: [act(cheap(wanted).item_id)], says: [cheap(wanted).item_id] },
      },
      {
        says: `On second thoughts I want it in ${better}. Then please exchange it.`,
        lookups: [found, lookup(call('find_products', { name: item.name }), cheap(better).item_id)],
        acts: [act(cheap(better).item_id)],
        told: [cheap(better).item_id],
        constraint,
        todo: `Exchange the ${item.name} (item ${item.item_id}) in ${order_id} for a ${better} one.`,
        note: `The ${item.name} in ${order_id} was exchanged for ${cheap(better).item_id} (${better}) by exchange_item.`,
        forgetful: { acts: [act(dear(better).item_id)], says: [dear(better).item_id] },
      },
    ]
  }

  mistake(): Goal[] {
    const wrong = this.#order('pending')
    const right = this.#order('pending')
    const thing = right.items.find(({ name }) => wrong.items.every((one) => one.name !== name)) ?? right.items[0]!
    const { customer_id } = this.#customer
    const act = call('cancel_order', { order_id: right.order_id })
    const wanted = { todo: `Cancel the order with the ${thing.name} once the customer has agreed which it is.` }
    return [
      {
        ...wanted,
        says: `Please cancel ${wrong.order_id}, the order of ${right.address} with the ${thing.name}.`,
        lookups: [
          lookup(call('get_order', { order_id: wrong.order_id }), wrong.address),
          lookup(call('list_orders', { customer_id }), right.order_id, right.address),
        ],
        acts: [],
        told: [right.order_id],
        note: `The customer wanted ${wrong.order_id} cancelled, but meant ${right.order_id} with the ${thing.name}; they were asked.`,
        careless: { acts: [call('cancel_order', { order_id: wrong.order_id })], says: [wrong.order_id] },
      },
      {
        ...wanted,
        says: 'You are right, I meant that one. Cancel it.',
        lookups: [lookup(call('list_orders', { customer_id }), right.order_id)],
        acts: [act],
        told: [right.order_id],
        note: `${right.order_id} was cancelled by cancel_order.`,
        forgetful: { acts: [], says: ['Which one do you mean?'] },
      },
    ]
  }

  shipped(): Goal {
    const order = this.#order('shipped')
    const { order_id } = order
    return {
      says: `And cancel ${order_id}, please.`,
      lookups: [lookup(call('get_shipment', { order_id }), order.tracking)],
      acts: [],
      told: ['shipped'],
      todo: `See whether ${order_id} can be cancelled.`,
      note: `${order_id} has been shipped (get_shipment) and could not be cancelled.`,
      careless: { acts: [call('cancel_order', { order_id })], says: ['It is cancelled.'] },
    }
  }

  again(): Goal {
    const order = this.#order()
    const { item_id, name } = this.draw.of(order.items)
    const { order_id } = order
    const { customer_id, email } = this.#customer
    const quantity = 2 + this.draw.below(3)
    return {
      says: `Send me the ${name} of order ${order_id} once more, ${quantity} of it.`,
      lookups: [lookup(call('find_customer', { email }), customer_id), lookup(call('get_order', { order_id }), item_id)],
      acts: [call('place_order', { customer_id, item_id, quantity })],
      told: [item_id],
      todo: `Order item ${name} of ${order_id} again, ${quantity} of it.`,
      note: `${quantity} of item ${item_id} (${name} of ${order_id}) were ordered again by place_order.`,
      forgetful: { acts: [call('place_order', { customer_id, item_id, quantity: 1 })], says: [item_id] },
    }
  }

  recall(): Goal {
    const [first] = this.#orders
    return {
      says: 'What was the tracking number of the order that I asked about first?',
      lookups: [lookup(call('get_shipment', { order_id: first!.order_id }), first!.tracking)],
      acts: [],
      told: [first!.tracking],
      todo: `Tell the tracking number of ${first!.order_id}.`,
      note: `The tracking number of ${first!.order_id} was told again.`,
      forgetful: { acts: [], says: ['Which order was that?'] },
    }
  }

  get #customer() {
    return this.desk.customers[0]!
  }

  get #orders(): readonly RetailOrder[] {
    return this.desk.orders.filter(({ customer_id }) => customer_id === this.#customer.customer_id)
  }

  /**
   * Returns the next of the customer's orders, in rotation, with this status; of any status if none has it. Skips orders that were placed
   * during the story.
   */
  #order(status?: RetailOrder['status']): RetailOrder {
    const all = this.#orders
    for (let tries = 0; ; tries++) {
      const order = all[++this.#next % all.length]!
      if ((status === undefined || order.status === status || tries > all.length) && !order.order_id.startsWith('#N'))
        return order
    }
  }
}
