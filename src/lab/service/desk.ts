/** The order desk: makes customers, products and orders from a seed, carries out calls of its ten tools, and holds the agent's policy. */
import { Random } from '../../runtime/core/random.js'

export interface RetailVariant {
  readonly item_id: string
  readonly colour: string
  readonly price: number
  readonly available: boolean
}

export interface Product {
  readonly name: string
  readonly variants: readonly RetailVariant[]
}

export interface RetailItem {
  item_id: string
  name: string
  colour: string
  price: number
  quantity: number
}

export interface RetailOrder {
  readonly order_id: string
  readonly customer_id: string
  status: 'pending' | 'shipped' | 'cancelled'
  address: string
  readonly tracking: string
  readonly items: RetailItem[]
}

export interface Customer {
  readonly customer_id: string
  readonly name: string
  readonly email: string
}

/** The state of the order desk, as plain JSON. */
export interface Desk {
  readonly customers: Customer[]
  readonly products: Product[]
  readonly orders: RetailOrder[]
}

export interface DeskOptions {
  readonly seed: number
  /** Number of orders of the first customer, who talks to the agent. Other customers have two. */
  readonly orders: number
}

const FIRST = ['Ada', 'Bela', 'Cleo', 'Dario', 'Edda', 'Femi', 'Gita', 'Hugo', 'Ines', 'Joran', 'Kira', 'Levi']
const LAST = ['Amsel', 'Brandt', 'Castell', 'Dorn', 'Ekberg', 'Falk', 'Grove', 'Halm', 'Iversen', 'Jansen']
const THINGS = [
  'kettle',
  'desk lamp',
  'rucksack',
  'tea set',
  'headset',
  'rain coat',
  'office chair',
  'bread knife',
  'wall clock',
  'bicycle bell',
]
export const COLOURS = ['red', 'blue', 'green', 'black'] as const
const STREETS = ['Mill Lane', 'Harbour Road', 'Station Street', 'Orchard Way', 'Castle Hill', 'River Walk']
const TOWNS = ['Aldbrook', 'Bexham', 'Corley', 'Dunmere', 'Elstow']

export class Draw {
  readonly #random: Random
  readonly #used = new Set<string>()

  constructor(seed: number, ...stream: number[]) {
    this.#random = new Random(seed, ...stream)
  }

  below(count: number): number {
    return this.#random.below(count)
  }

  of<T>(items: readonly T[]): T {
    return items[this.below(items.length)]!
  }

  /** Draws a number with `count` digits, as text, that this object has not drawn before. */
  digits(count: number): string {
    for (;;) {
      const text = String(10 ** (count - 1) + this.below(9 * 10 ** (count - 1)))
      if (this.#used.has(text)) continue
      this.#used.add(text)
      return text
    }
  }

  address(): string {
    return `${1 + this.below(98)} ${this.of(STREETS)}, ${this.digits(5)} ${this.of(TOWNS)}`
  }
}

/**
 * Makes a desk; the same options give the same one. Each product has two variants per colour, one of them at about three times the price.
 */
export function makeDesk({ seed, orders }: DeskOptions): Desk {
  const draw = new Draw(seed)
  const products = THINGS.map((name): Product => {
    const base = 20 + draw.below(60)
    const variants = COLOURS.flatMap((colour) =>
      [1, 3].map((factor): RetailVariant => ({
        item_id: draw.digits(8),
        colour,
        price: Number(`${base * factor}.${draw.digits(2 + 1).slice(1)}`),
        available: true,
      })),
    )
    return { name, variants }
  })
  const customers = FIRST.map((first): Customer => {
    const last = draw.of(LAST)
    return { customer_id: `C${draw.digits(6)}`, name: `${first} ${last}`, email: `${first}.${last}@example.com`.toLowerCase() }
  })
  const made = customers.flatMap(({ customer_id }, at) =>
    Array.from({ length: at === 0 ? orders : 2 }, (_, index): RetailOrder => {
      // Neighbouring orders hold different products, so a product tells two such orders apart.
      const things = [0, 1].map((one) => products[(2 * index + one) % products.length]!)
      return {
        order_id: `#W${draw.digits(7)}`,
        customer_id,
        status: index % 3 === 2 ? 'shipped' : 'pending',
        address: draw.address(),
        tracking: `T-${draw.digits(9)}`,
        items: things.map(({ name, variants }) => {
          const { item_id, colour, price } = variants.find((one) => one.colour === 'black')!
          return { item_id, name, colour, price, quantity: 1 }
        }),
      }
    }),
  )
  return { customers, products, orders: made }
}

export interface Call {
  readonly name: string
  readonly arguments: Readonly<Record<string, unknown>>
}

/** The tools by name: the description, and the types of the arguments. */
const TOOLS = {
  find_customer: { about: 'Finds a customer by e-mail address.', takes: { email: 'string' } },
  get_customer: { about: 'A customer by id.', takes: { customer_id: 'string' } },
  list_orders: { about: 'All orders of a customer, with their items.', takes: { customer_id: 'string' } },
  get_order: { about: 'One order with its items, status and address.', takes: { order_id: 'string' } },
  get_shipment: { about: 'Status and tracking number of an order.', takes: { order_id: 'string' } },
  find_products: { about: 'All variants of a product with ids, colours and prices.', takes: { name: 'string' } },
  change_address: { about: 'Has a pending order sent somewhere else.', takes: { order_id: 'string', address: 'string' } },
  exchange_item: {
    about: 'Replaces an item of a pending order by another variant of the same product.',
    takes: { order_id: 'string', item_id: 'string', new_item_id: 'string' },
  },
  cancel_order: { about: 'Cancels a pending order.', takes: { order_id: 'string' } },
  place_order: {
    about: 'A new order of one item, sent where the latest one went.',
    takes: { customer_id: 'string', item_id: 'string', quantity: 'integer' },
  },
} as const

export type ToolName = keyof typeof TOOLS

export const toolDefinitions = Object.entries(TOOLS).map(([name, { about, takes }]) => ({
  name,
  description: about,
  parameters: {
    type: 'object',
    properties: Object.fromEntries(Object.entries(takes).map(([key, type]) => [key, { type }])),
    required: Object.keys(takes),
  },
}))

export const POLICY = `You are the agent of an order desk and help one customer.
Look the customer up by e-mail before anything else. Read from the tools and never guess: what you say and what you change must stand in a result.
Only pending orders can be changed or cancelled. If the customer names the wrong order, say which one is right and change nothing before they agree.
Before an address is changed, repeat order and address and ask for a yes. A limit on the price holds until the customer takes it back.
When the customer asks whether an item can be exchanged, name the other item; exchange only when told to.
Answer in one or two sentences with the prices and numbers asked for, and name the ids of the orders and items that you speak of. Call no tool when you need none.`

/** Carries out a call, which may change `desk`. Returns the result, or the reason why the call is refused. */
export function carryOut(
  desk: Desk,
  { name, arguments: given }: Call,
): { readonly ok: true; readonly value: unknown } | { readonly ok: false; readonly why: string } {
  const no = (why: string) => ({ ok: false, why }) as const
  const text = (key: string): string =>
    typeof given[key] === 'string' || typeof given[key] === 'number' ? String(given[key]) : ''
  const tool = Object.hasOwn(TOOLS, name) ? TOOLS[name as ToolName] : null
  if (tool === null) return no(`there is no tool ${name}`)
  const missing = Object.keys(tool.takes).find((key) => text(key) === '')
  if (missing !== undefined) return no(`${missing} is missing`)
  const customer = desk.customers.find(
    (one) => one.customer_id === text('customer_id') || one.email === text('email').toLowerCase(),
  )
  const order = desk.orders.find((one) => one.order_id === text('order_id'))
  if (['find_customer', 'get_customer', 'list_orders', 'place_order'].includes(name) && customer === undefined)
    return no('there is no such customer')
  if ('order_id' in tool.takes && order === undefined) return no(`there is no order ${text('order_id')}`)
  if (['change_address', 'exchange_item', 'cancel_order'].includes(name) && order!.status !== 'pending')
    return no(`order ${order!.order_id} is ${order!.status} and cannot be changed`)
  switch (name as ToolName) {
    case 'find_customer':
    case 'get_customer':
      return { ok: true, value: customer }
    case 'list_orders':
      return { ok: true, value: desk.orders.filter((one) => one.customer_id === customer!.customer_id) }
    case 'get_order':
      return { ok: true, value: order }
    case 'get_shipment': {
      const { order_id, status, tracking } = order!
      return { ok: true, value: { order_id, status, tracking } }
    }
    case 'find_products': {
      const product = desk.products.find((one) => one.name === text('name').toLowerCase())
      return product === undefined ? no(`there is no product ${text('name')}`) : { ok: true, value: product }
    }
    case 'change_address':
      order!.address = text('address')
      return { ok: true, value: order }
    case 'cancel_order':
      order!.status = 'cancelled'
      return { ok: true, value: order }
    case 'exchange_item': {
      const item = order!.items.find((one) => one.item_id === text('item_id'))
      if (item === undefined) return no(`order ${order!.order_id} has no item ${text('item_id')}`)
      const product = desk.products.find((one) => one.name === item.name)!
      const variant = product.variants.find((one) => one.item_id === text('new_item_id') && one.available)
      if (variant === undefined) return no(`${text('new_item_id')} is no ${item.name} that can be had`)
      const { item_id, colour, price } = variant
      Object.assign(item, { item_id, colour, price })
      return { ok: true, value: order }
    }
    case 'place_order': {
      const quantity = Number(given['quantity'])
      if (!Number.isInteger(quantity) || quantity < 1) return no('quantity must be a whole number from 1')
      const product = desk.products.find(({ variants }) => variants.some(({ item_id }) => item_id === text('item_id')))
      const variant = product?.variants.find(({ item_id }) => item_id === text('item_id'))
      if (product === undefined || variant === undefined) return no(`there is no item ${text('item_id')}`)
      const { item_id, colour, price } = variant
      const number = desk.orders.length + 1
      const last = desk.orders.findLast((one) => one.customer_id === customer!.customer_id)
      const placed: RetailOrder = {
        order_id: `#N${number}`,
        customer_id: customer!.customer_id,
        status: 'pending',
        address: last?.address ?? '',
        tracking: `T-N${number}`,
        items: [{ item_id, name: product.name, colour, price, quantity }],
      }
      desk.orders.push(placed)
      return { ok: true, value: placed }
    }
  }
}

const NOISE = 'warehouse_zone carrier_ref audit_code batch_label source_system route_hint tax_class pallet_code'.split(' ')

/** Returns a tool's result as JSON text. Adds `fields` useless fields to each record, to make the text long. */
export function worded(value: unknown, fields: number, draw: Draw): string {
  const noisy = (part: unknown): unknown => {
    if (Array.isArray(part)) return part.map(noisy)
    if (typeof part !== 'object' || part === null) return part
    const own = Object.entries(part).map(([key, inner]) => [key, noisy(inner)])
    const more = Array.from({ length: fields }, (_, at) => [
      `${NOISE[at % NOISE.length]!}_${at + 1}`,
      `${draw.of(STREETS)} ${10000 + draw.below(89999)}`,
    ])
    return Object.fromEntries([...own, ...more])
  }
  return JSON.stringify(noisy(value))
}
