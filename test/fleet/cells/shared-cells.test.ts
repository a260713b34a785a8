/**
 * Tests engines that share cells through a folder. They find each other's cells there, and never wrong ones: whatever other engines write,
 * delete, damage or leave unfinished, an answer is that of a fresh prefill.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, truncateSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import fc from 'fast-check'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { Conversation } from '../../../src/runtime/context/conversation.js'
import { portsOf } from '../../../src/runtime/context/ports.js'
import { steady } from '../../../src/runtime/core/clock.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { Random } from '../../../src/runtime/core/random.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { sharedCells, SharedCellsFolder } from '../../../src/fleet/cells/shared-cells-folder.js'
import { WORDS } from '../../../src/runtime/kv/cell-hash.js'
import { BLOCK, type OffloadRecord, type SharedCounts } from '../../../src/runtime/kv/ports.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { TEST_GPU } from '../../support/device.js'
import { tinyModel } from '../../support/models.js'
import { refused } from '../../runtime/native/support/fixture.js'
import { answer, type Answered, type Ask, loadSharing, tokensOf } from './support/shared-cells-process.js'
import { LONG } from '../../support/long.js'

const ROOT = join(import.meta.dirname, '../../..')
const SECRET = Buffer.alloc(32, 'a secret of all')
const MIB = 2 ** 20
/** The tolerance of log-probabilities with shared cells and after a fresh prefill; batches of other shapes round differently. */
const CLOSE = 0.02

let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-shared-'))
})
afterEach(() => {
  rmSync(folder, { recursive: true, force: true })
})

const blocksIn = () => readdirSync(folder).filter((name) => name.endsWith('.kvcells'))
const sizeOf = () =>
  blocksIn().reduce((sum, name) => sum + (statSync(join(folder, name), { throwIfNoEntry: false })?.size ?? 0), 0)
const ask = (more: Partial<Ask> = {}): Ask => ({
  ...{ family: 1, length: 700, fork: 4000, own: 0, conversation: 'a', tenant: 'anna' },
  ...more,
})
const place = (bytes = 64 * MIB) => ({ folder, bytes, secret: SECRET })

// The reference engine.

let reference: LlamaEngine
let asked = 0
const expected = new Map<string, Promise<readonly number[]>>()

beforeAll(async () => {
  reference = await loadSharing(null)
})
afterAll(() => reference.dispose())

/** Returns the log-probabilities of a fresh prefill, under a tenant of its own. */
function fresh({ family, length, fork, own }: Ask): Promise<readonly number[]> {
  const key = [family, length, fork, own].join()
  const name = `fresh ${asked++}`
  const found =
    expected.get(key) ??
    answer(reference, { family, length, fork, own, tenant: name, conversation: name }).then(({ logprobs, computed }) => {
      expect(computed).toBe(length + 1)
      reference.forget(conversationId(name))
      return logprobs
    })
  expected.set(key, found)
  return found
}

async function expectFresh(found: Answered, of: Ask, message?: string): Promise<void> {
  const logprobs = await fresh(of)
  if (!found.cancelled) expect(found.logprobs).toHaveLength(logprobs.length)
  for (const [at, logprob] of found.logprobs.entries()) expect(Math.abs(logprob - logprobs[at]!), message).toBeLessThan(CLOSE)
}

describe('two engines', () => {
  const engines: LlamaEngine[] = []

  afterEach(async () => {
    for (const engine of engines.splice(0)) await engine.dispose()
  })

  const load = async (shared: Parameters<typeof loadSharing>[0] = place()) => {
    const engine = await loadSharing(shared)
    engines.push(engine)
    return engine
  }
  it('compute a text once: the other takes its whole blocks, and continues as a fresh prefill would', async () => {
    const [one, other] = [await load(), await load()]
    const first = await answer(one, ask())
    expect(first).toMatchObject({ shared: 0, computed: 701 })
    await one.published()
    expect(blocksIn()).toHaveLength(2)
    const second = await answer(other, ask({ conversation: 'b' }))
    expect(second).toMatchObject({ shared: 512, computed: 701 - 512 })
    await expectFresh(second, ask())
    // Existing blocks are not written again; new ones are.
    const longer = ask({ conversation: 'b', length: 1100 })
    expect(await answer(other, longer)).toMatchObject({ computed: 1101 - 700 })
    await other.published()
    expect(blocksIn()).toHaveLength(4)
    expect(other.cacheTotals.shared).toEqual({ read: 2, written: 2, refused: 0, evicted: 0, failed: 0 })
    const back = await answer(one, ask({ length: 1100 }))
    expect(back).toMatchObject({ shared: 4 * BLOCK - 700, computed: 1101 - 4 * BLOCK })
    await expectFresh(back, longer)
    for (const engine of [one, other]) await engine.check('full')
  })

  it('publish evicted blocks again, and keep those of an active conversation', async () => {
    const one = await load()
    await answer(one, ask())
    await one.published()
    const [gone, old] = blocksIn().map((name) => join(folder, name))
    rmSync(gone!)
    utimesSync(old!, 1, 1)
    const later = steady.now() + 11 * 60_000
    const clock = vi.spyOn(steady, 'now').mockReturnValue(later)
    await answer(one, ask({ length: 800 }))
    await one.published()
    clock.mockRestore()
    expect(blocksIn()).toHaveLength(3)
    expect(statSync(gone!).size).toBeGreaterThan(0)
    expect(statSync(old!).mtimeMs).toBeGreaterThan(later - 1000)
  })

  it('delete a forgotten text from the folder, and do so again after it was restored', async () => {
    const settings = { cells: 4096, threads: 1, batchThreads: 1, slots: 2, shared: sharedCells(place()) }
    const engine = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), settings)
    engines.push(engine)
    const secret = 'The password of the harbour is coralgate.'
    const lines = (from: number) => Array.from({ length: 40 }, (_, at) => `Line ${from + at} stands here.`).join(' ')
    const id = conversationId('secret')
    const conversation = new Conversation(id, portsOf(engine, id))
    conversation.add({ role: 'user', content: `${lines(0)} ${secret} ${lines(40)}` })
    const cut = conversation.fragment({ startMarker: 'The password', endMarker: 'coralgate.', numFragments: 1 })
    const fragment = cut.ok ? cut.fragments[0]!.id : ''
    const show = async () => {
      await engine.respond({ conversation: id, messages: conversation.messages, edits: conversation.edits(), maxTokens: 1 }).reply
      await engine.published()
    }
    const tokens = Buffer.from(engine.model.tokenize(' password of the harbour is coral').buffer)
    const found = () => blocksIn().filter((name) => readFileSync(join(folder, name)).includes(tokens)).length
    for (let round = 0; round < 2; round++) {
      await show()
      expect(found(), `round ${round}`).toBe(1)
      conversation.fold(fragment, { forget: true })
      await engine.forgetHidden(id, conversation.messages, [], conversation.edits())
      expect(found(), `round ${round}`).toBe(0)
      await show()
      expect(found(), `round ${round}`).toBe(0)
      conversation.restore(fragment)
    }
  })

  it('go on with others while they delete a forgotten text from the folder, and publish it no more', async () => {
    const shared = sharedCells(place())
    const gated = () => {
      let resolve = () => {}
      return {
        promise: new Promise<void>((done) => (resolve = done)),
        open: () => {
          resolve()
        },
      }
    }
    const gates = { put: gated(), forget: gated() }
    const open = async (...given: Parameters<typeof shared.open>) => {
      const tier = await shared.open(...given)
      const [put, forget] = [tier.put.bind(tier), tier.forget.bind(tier)]
      tier.put = (...of) => gates.put.promise.then(() => put(...of))
      tier.forget = (...of) => forget(...of).then(() => gates.forget.promise)
      return tier
    }
    const settings = { cells: 4096, threads: 1, batchThreads: 1, slots: 2, shared: { ...shared, open } }
    const engine = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), settings)
    engines.push(engine)
    const lines = Array.from({ length: 40 }, (_, at) => `Line ${at} stands here.`).join(' ')
    const secret = 'The password of the harbour is coralgate.'
    const ended: string[] = []
    const say = async (name: string, content: string, forget = false) => {
      const edit = { message: 0, span: { start: 0, end: secret.length }, replacement: 'gate', forget: true as const }
      const request = { messages: [{ role: 'user' as const, content }], edits: forget ? [edit] : [], maxTokens: 1 }
      await engine.respond({ conversation: conversationId(name), ...request }).reply
      ended.push(name)
    }
    // The first conversation is being published, so the second one waits.
    await say('one', lines)
    await say('two', `${secret} ${lines}`)
    const forgetting = say('two', `${secret} ${lines}`, true)
    await say('three', 'Good day.')
    expect(ended).toEqual(['one', 'two', 'three'])
    gates.put.open()
    await new Promise((resolve) => setTimeout(resolve, 300))
    gates.forget.open()
    await forgetting
    await engine.published()
    const tokens = Buffer.from(engine.model.tokenize(' password of the harbour is coral').buffer)
    expect(blocksIn().length).toBeGreaterThan(0)
    expect(blocksIn().filter((name) => readFileSync(join(folder, name)).includes(tokens))).toEqual([])
  })

  it('never lend to another tenant, or under another secret', async () => {
    const [one, other] = [await load(), await load()]
    await answer(one, ask())
    await one.published()
    expect(await answer(other, ask({ tenant: 'bert', conversation: 'b' }))).toMatchObject({ shared: 0, computed: 701 })
    await other.published()
    expect(blocksIn()).toHaveLength(4)
    const error = await refused('engine/bad-request', () => load({ ...place(), secret: Buffer.alloc(32, 'another') }))
    expect(error.message).toContain('belongs to another secret')
    expect(blocksIn()).toHaveLength(4)
  })

  it('never load cells of another layout', async () => {
    const one = await load()
    await answer(one, ask())
    await one.published()
    const other = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), await tinyModel(), {
      ...{ cells: 4096, threads: 1, batchThreads: 1, flashAttention: 'off', shared: sharedCells(place()) },
    })
    engines.push(other)
    expect(await answer(other, ask({ conversation: 'b' }))).toMatchObject({ shared: 0, computed: 701 })
    await other.published()
    expect(blocksIn()).toHaveLength(4)
  })

  it('share no cells computed beside hidden text, and use exact cells for the folded prompt', async () => {
    const [one, other] = [await load(), await load()]
    const base = tokensOf(ask({ length: 1200 }))
    await answer(one, ask({ length: 1200 }))
    await one.published()
    // A splice hides places 300 to 400; the tokens after them were computed with them in sight.
    const tokens = Int32Array.from([...base.subarray(0, 300), 9, 9, ...base.subarray(400)])
    const terms = { contract: 'splice' as const }
    const origin = { base, holes: [{ span: { start: 300, end: 400 }, marker: 2 }] }
    const spliced = await one.complete({ conversation: conversationId('a'), tenant: 'anna', tokens, origin, terms, maxTokens: 1 })
    expect(spliced.ledger.approximate).toBeGreaterThan(700)
    await one.published()
    expect(blocksIn()).toHaveLength(4)
    const asked = { conversation: conversationId('b'), tenant: 'anna', tokens, maxTokens: 1, logprobs: 1 }
    const exact = await other.complete(asked)
    expect(exact.ledger).toMatchObject({ approximate: 0, tiers: { shared: BLOCK } })
    const whole = await reference.complete({ ...asked, conversation: conversationId('whole') })
    expect(Math.abs(exact.logprobs[0]!.logprob - whole.logprobs[0]!.logprob)).toBeLessThan(CLOSE)
  })

  it('use no damaged, cut or exchanged block: it is deleted, counted and recomputed', async () => {
    const one = await load()
    await answer(one, ask({ length: 1100 }))
    await one.published()
    const whole = new Map(blocksIn().map((name) => [name, readFileSync(join(folder, name))]))
    const random = new Random(3)
    const names = [...whole.keys()]
    const damages: ((name: string, bytes: Buffer) => void)[] = [
      (name, bytes) => {
        bytes[random.below(bytes.length)]! ^= 1 << random.below(8)
        writeFileSync(join(folder, name), bytes)
      },
      (name, bytes) => {
        truncateSync(join(folder, name), random.below(bytes.length))
      },
      (name) => {
        writeFileSync(join(folder, name), '')
      },
      (name) => {
        writeFileSync(join(folder, name), whole.get(names.find((each) => each !== name)!)!)
      },
      (name, bytes) => {
        writeFileSync(join(folder, name), Buffer.concat([bytes, Buffer.from('x')]))
      },
    ]
    for (let round = 0; round < 10; round++) {
      for (const [name, bytes] of whole) writeFileSync(join(folder, name), bytes)
      for (const name of names) damages[(round + names.indexOf(name)) % damages.length]!(name, Buffer.from(whole.get(name)!))
      const other = await load()
      const found = await answer(other, ask({ conversation: 'b', length: 1100 }))
      expect(found).toMatchObject({ shared: 0, computed: 1101 })
      await expectFresh(found, ask({ length: 1100 }))
      expect(other.cacheTotals.shared!.refused).toBeGreaterThan(0)
      await engines.pop()!.dispose()
    }
  })

  it('keep nothing of a conversation that is erased, and other conversations keep theirs', async () => {
    const [one, other] = [await load(), await load()]
    await answer(one, ask())
    await answer(one, ask({ family: 2, conversation: 'kept' }))
    await one.published()
    expect(blocksIn()).toHaveLength(4)
    await other.erase(conversationId('a'))
    expect(blocksIn()).toHaveLength(2)
    expect(await answer(other, ask({ conversation: 'b' }))).toMatchObject({ shared: 0 })
    expect(await answer(other, ask({ family: 2, conversation: 'b2' }))).toMatchObject({ shared: 512 })
    // A block still being written during the erasure does not appear afterwards.
    await answer(one, ask({ family: 3, length: 2000, conversation: 'late' }))
    await one.erase(conversationId('late'))
    await one.published()
    const secret = Buffer.from(tokensOf(ask({ family: 3 })).slice(0, 8).buffer)
    expect(blocksIn().filter((name) => readFileSync(join(folder, name)).includes(secret))).toEqual([])
  })
})

// From here on, engines in separate processes.

class Node {
  readonly #waiting = new Map<number, (said: { result?: unknown; error?: string }) => void>()
  #asked = 0

  private constructor(readonly child: ChildProcess) {}

  static async start(bytes: number, limit?: string): Promise<Node> {
    const words = ['--import', 'tsx', join(import.meta.dirname, 'support/shared-cells-process.ts')]
    const own = [process.execPath, ...words, folder, String(bytes), SECRET.toString('hex')]
    const [program, ...args] = limit === undefined ? own : ['/bin/sh', '-c', `ulimit -f ${limit}; exec "$0" "$@"`, ...own]
    const node = new Node(spawn(program!, args, { cwd: ROOT, stdio: ['pipe', 'pipe', 'inherit'] }))
    await new Promise<void>((resolve, reject) => {
      node.child.once('exit', () => {
        reject(new Error('the process ended'))
      })
      createInterface(node.child.stdout!).on('line', (line) => {
        const said = JSON.parse(line) as { ready?: true; id: number; result?: unknown; error?: string }
        if (said.ready === true) resolve()
        else node.#waiting.get(said.id)?.(said)
      })
    })
    return node
  }

  async #call<T>(what: object): Promise<T> {
    const id = this.#asked++
    const said = new Promise<{ result?: unknown; error?: string }>((resolve) => this.#waiting.set(id, resolve))
    this.child.stdin!.write(`${JSON.stringify({ id, ...what })}\n`)
    const { result, error } = await said
    if (error !== undefined) throw new Error(error)
    return result as T
  }

  ask(of: Ask): Promise<Answered> {
    return this.#call({ ask: of })
  }

  erase(conversation: string): Promise<SharedCounts> {
    return this.#call({ forget: conversation })
  }

  /** Waits until everything is published, and checks the cell table against llama.cpp. */
  settled(): Promise<SharedCounts> {
    return this.#call({})
  }

  async end(how: 'SIGKILL' | 'in order' = 'in order'): Promise<void> {
    const gone = once(this.child, 'exit')
    if (how === 'SIGKILL') this.child.kill('SIGKILL')
    else this.child.stdin!.end()
    await gone
  }
}

const FAMILIES = 2
const step = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.record({
      do: fc.constant('ask' as const),
      node: fc.nat(1),
      family: fc.nat(FAMILIES - 1),
      length: fc.integer({ min: 200, max: 1100 }),
      fork: fc.constantFrom(300, 600, 4000),
      tenant: fc.constantFrom('anna', 'anna', 'anna', 'bert'),
      who: fc.nat(5),
    }),
  },
  fc.record({ do: fc.constantFrom('delete' as const, 'damage' as const, 'cut' as const), which: fc.nat(30), at: fc.nat() }),
  fc.record({ do: fc.constant('erase' as const), node: fc.nat(1), who: fc.nat(5) }),
  { weight: 4, arbitrary: fc.record({ do: fc.constant('wait' as const) }) },
)

describe('two processes', () => {
  const nodes: Node[] = []
  afterEach(async () => {
    for (const node of nodes.splice(0))
      if (node.child.exitCode === null && node.child.signalCode === null) await node.end('SIGKILL')
  })

  const start = async (bytes: number, limit?: string) => {
    const node = await Node.start(bytes, limit)
    nodes.push(node)
    return node
  }

  it('answer as a fresh prefill does, whatever else happens in the folder at the same time', { timeout: 600_000 }, async () => {
    // There is room for some 20 blocks, so each evicts blocks that the other reads.
    const bytes = 1.5 * MIB
    const [one, other] = [await start(bytes), await start(bytes)]
    const [sum, most] = [{ shared: 0, answers: 0 }, { bytes: 0 }]
    let run = 0
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 6, maxLength: 16 }), async (steps) => {
        run++
        const running: Promise<void>[] = []
        for (const [at, each] of steps.entries()) {
          const node = 'node' in each && each.node === 1 ? other : one
          if (each.do === 'ask') {
            const { family, length, fork, tenant, who } = each
            const of = { family: 100 * run + family, length, fork, own: who, tenant, conversation: `${tenant} ${run}.${who}` }
            running.push(
              node.ask(of).then(async (found) => {
                await expectFresh(found, of, JSON.stringify({ of, at }))
                sum.shared += found.shared
                sum.answers++
              }),
            )
          } else if (each.do === 'erase') running.push(node.erase(`anna ${run}.${each.who}`).then(() => undefined))
          else if (each.do === 'wait')
            await Promise.allSettled([...running]).then(() => Promise.all([one.settled(), other.settled()]))
          else {
            const names = blocksIn()
            const path = join(folder, names[each.which % Math.max(1, names.length)] ?? 'none')
            const size = statSync(path, { throwIfNoEntry: false })?.size ?? 0
            if (size === 0) continue
            if (each.do === 'delete') rmSync(path, { force: true })
            else if (each.do === 'cut') truncateSync(path, each.at % size)
            else
              try {
                const content = readFileSync(path)
                content[each.at % size]! ^= 1
                writeFileSync(path, content, { flag: 'r+' })
              } catch {
                // The other one deleted it.
              }
          }
          most.bytes = Math.max(most.bytes, sizeOf())
        }
        // A request of a conversation erased meanwhile gets an error, and nothing else fails.
        for (const result of await Promise.allSettled(running))
          if (
            result.status === 'rejected' &&
            !String(result.reason).includes('engine/cancelled') &&
            !/cancelled/u.test(String(result.reason))
          )
            throw result.reason
      }),
      { numRuns: LONG ? 150 : 5, endOnFailure: true },
    )
    const counts = [await one.settled(), await other.settled()]
    most.bytes = Math.max(most.bytes, sizeOf())
    expect(sum.answers).toBeGreaterThan(20)
    expect(sum.shared).toBeGreaterThan(1000)
    expect(most.bytes).toBeLessThanOrEqual(bytes)
    expect(counts.some(({ evicted }) => evicted > 0)).toBe(true)
    expect(readdirSync(folder).filter((name) => name.endsWith('.tmp'))).toEqual([])
  })

  it(
    'killed while they write leave no incomplete block that counts as whole; their leftovers are deleted later',
    { timeout: 120_000 },
    async () => {
      const rounds = LONG ? 12 : 1
      for (let round = 0; round < rounds; round++) {
        const one = await start(256 * MIB)
        const of = ask({ family: 20 + round, length: 3000 })
        await one.ask(of)
        await expect.poll(() => blocksIn().length, { interval: 1 }).toBeGreaterThan(1 + (round % 3))
        await one.end('SIGKILL')
        const other = await start(256 * MIB)
        const found = await other.ask({ ...of, conversation: 'b' })
        await expectFresh(found, of)
        expect(await other.settled()).toMatchObject({ refused: 0, failed: 0 })
        expect(blocksIn().length).toBeGreaterThanOrEqual(11)
        await other.end()
        rmSync(folder, { recursive: true })
        folder = mkdtempSync(join(tmpdir(), 'kvfold-shared-'))
      }
      const [young, old] = ['a', 'b'].map((digit) => join(folder, `kvfold-${digit.repeat(64)}.tmp`))
      for (const path of [young!, old!]) writeFileSync(path, 'half of a bl')
      utimesSync(old!, Date.now() / 1000 - 7200, Date.now() / 1000 - 7200)
      const last = await start(256 * MIB)
      await last.ask(ask())
      await last.settled()
      expect(readdirSync(folder).filter((name) => name.endsWith('.tmp'))).toEqual([young!.slice(folder.length + 1)])
    },
  )

  it('on a full disk still answer, and leave no partial file', { timeout: 60_000 }, async () => {
    // A limit on file sizes acts as a full disk and needs no rights: 32 KiB or 64, depending on the shell, of the 70 that a block needs.
    const node = await start(64 * MIB, '64')
    const found = await node.ask(ask())
    await expectFresh(found, ask())
    expect((await node.settled()).failed).toBeGreaterThan(0)
    expect(readdirSync(folder)).toEqual(['kvfold.shared'])
  })
})

// From here on, the folder alone.

describe('the folder', () => {
  const identity = Buffer.alloc(32, 'a model')
  const record = (seed: number): OffloadRecord => {
    const random = new Random(seed, 5)
    const numbers = (length: number) => Int32Array.from({ length }, () => random.word() | 0)
    const positions = Int32Array.from({ length: BLOCK }, (_, at) => at + BLOCK * (seed % 4))
    const conversation = conversationId(`talk${seed % 5}`)
    return {
      conversation,
      unedited: new Int32Array(),
      tokens: numbers(BLOCK),
      sourceIds: positions,
      positions,
      hashes: numbers(WORDS * BLOCK),
    }
  }
  const stateOf = (seed: number) => Buffer.alloc(3000 + 997 * (seed % 7), seed)
  const open = (bytes: number) => SharedCellsFolder.open({ folder, bytes, secret: SECRET, identity })

  it('keeps to its size whoever writes, and returns the stored state or nothing', { timeout: 60_000 }, async () => {
    const operation = fc.record({
      do: fc.constantFrom('put', 'put', 'put', 'take', 'forget'),
      who: fc.nat(2),
      seed: fc.nat(40),
    })
    await fc.assert(
      fc.asyncProperty(
        fc.array(operation, { minLength: 20, maxLength: 60 }),
        fc.integer({ min: 300_000, max: 500_000 }),
        async (all, bytes) => {
          rmSync(folder, { recursive: true })
          const nodes = [await open(bytes), await open(bytes), await open(bytes)]
          const results = all.map(async ({ do: what, who, seed }) => {
            const node = nodes[who]!
            if (what === 'put') return node.put(record(seed), stateOf(seed), () => true)
            if (what === 'forget') return node.forget(conversationId(`talk${seed % 5}`))
            const state = await node.take(record(seed))
            if (state !== null) expect(Buffer.compare(state, stateOf(seed))).toBe(0)
            return undefined
          })
          await Promise.all(results)
          expect(sizeOf()).toBeLessThanOrEqual(bytes)
          for (const node of nodes) {
            expect(node.counts).toMatchObject({ refused: 0, failed: 0 })
            await node.close()
          }
        },
      ),
      { numRuns: LONG ? 100 : 8 },
    )
  })

  it('evicts the end of a text before its beginning, and the least recently used block first', async () => {
    const node = await open(400_000)
    const states = [0, 1, 2, 3].map((seed) => record(seed))
    for (const each of states) await node.put(each, Buffer.alloc(15_000), () => true)
    // Age the files.
    for (const name of blocksIn()) {
      const { mtimeMs } = statSync(join(folder, name))
      utimesSync(join(folder, name), mtimeMs / 1000 - 1000, mtimeMs / 1000 - 1000)
    }
    for (const seed of [0, 1]) expect(await node.take(states[seed]!)).not.toBeNull()
    for (let seed = 4; seed < 18; seed++) await node.put(record(seed), Buffer.alloc(15_000), () => true)
    const left = await Promise.all(states.map(async (each) => (await node.take(each)) !== null))
    expect(left).toEqual([true, true, false, false])
  })

  it('shows no hash, text or name in its file names, and is readable by its user alone', async () => {
    const node = await open(1_000_000)
    await node.put(record(1), stateOf(1), () => true)
    const again = await SharedCellsFolder.open({
      folder,
      bytes: 1_000_000,
      secret: SECRET,
      identity: Buffer.alloc(32, 'another'),
    })
    expect(await again.take(record(1))).toBeNull()
    await again.put(record(1), stateOf(1), () => true)
    const names = blocksIn()
    expect(new Set(names).size).toBe(2)
    for (const name of names) {
      expect(name).toMatch(/^[0-9a-f]{32}\.kvcells$/u)
      expect(statSync(join(folder, name)).mode & 0o777).toBe(0o600)
    }
  })
})
