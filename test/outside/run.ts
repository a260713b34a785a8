/** Runs histories: a worker with the shim below it, the reference beside it, and the judge over both. */
import { spawn, type ChildProcessByStdio } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, rmSync, truncateSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable, Writable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { synthesizeOther } from '../support/synthetic-others.js'
import { slidingModel, tinyModel } from '../support/models.js'
import type { History, HistoryModel, HistoryOp } from './history.js'
import { emptyTally, Judge, MOST_NOISE, type Noise, type Shows, type Tally, type Violation } from './judge.js'
import { Observer } from './observer.js'
import { programs } from './programs.js'
import type { Op, Opening, StepSaid, WorkerSaid } from './protocol.js'
import { Reference } from './reference.js'

const ROOT = join(import.meta.dirname, '../..')

/** Tokens of the template before an answer, at most, and one more. */
const ANNOUNCED = 8

class Worker {
  readonly #child: ChildProcessByStdio<Writable, Readable, null>
  readonly #waiting: ((said: WorkerSaid) => void)[] = []

  constructor(log: string) {
    this.#child = spawn(process.execPath, ['--import', 'tsx', join(import.meta.dirname, 'worker.ts')], {
      cwd: ROOT,
      stdio: ['pipe', 'pipe', 'inherit'],
      env: { ...process.env, LD_PRELOAD: programs().shim, KVFOLD_OUTSIDE_LOG: log },
    })
    createInterface({ input: this.#child.stdout }).on('line', (line) => this.#waiting.shift()?.(JSON.parse(line) as WorkerSaid))
    this.#child.once('close', (code, signal) => {
      for (const resolve of this.#waiting.splice(0)) resolve({ error: `the worker ended (${signal ?? code ?? ''})` })
    })
  }

  get ended(): boolean {
    return this.#child.exitCode !== null || this.#child.signalCode !== null
  }

  ask(op: Op): Promise<WorkerSaid> {
    if (this.ended) return Promise.resolve({ error: 'the worker has ended' })
    return new Promise((resolve) => {
      this.#waiting.push(resolve)
      this.#child.stdin.write(`${JSON.stringify(op)}\n`)
    })
  }

  async kill(): Promise<void> {
    if (this.ended) return
    const closed = once(this.#child, 'close')
    this.#child.kill('SIGKILL')
    await closed
  }

  async end(): Promise<void> {
    if (this.ended) return
    const closed = once(this.#child, 'close')
    this.#child.stdin.end()
    await closed
  }
}

export interface Verdict {
  readonly violations: readonly Violation[]
  readonly tally: Tally
}

/**
 * A step that is off by no more than roundings of keys and values may do is judged by the same history with keys and values of 32 bits: a fault
 * stays there, a rounding does not.
 */
export async function settled(verdict: Verdict, withoutRounding: () => Promise<Verdict>): Promise<Verdict> {
  const { violations, tally } = verdict
  const sure = violations.filter(({ mayBeRounding = false }) => !mayBeRounding)
  const open = violations.length - sure.length
  if (open === 0) return verdict
  const other = await withoutRounding()
  return { violations: [...sure, ...other.violations], tally: { ...tally, rounded: tally.rounded + open } }
}

/** Keeps processes from one history to the next; what a history does is of no effect on those after it. */
export class Runner {
  readonly #folder = mkdtempSync(join(tmpdir(), 'kvfold-outside-'))
  readonly #log = join(this.#folder, 'calls')
  #worker: Worker | null = null
  #reference: { readonly key: string; readonly process: Reference } | null = null
  readonly noises = new Map<string, Noise>()

  async run(history: History): Promise<Verdict> {
    const { setting } = history
    return settled(await this.#once(history), () =>
      this.#once({ ...history, setting: { ...setting, keyType: 'f32', valueType: 'f32' } }),
    )
  }

  async #once(history: History): Promise<Verdict> {
    const tally = emptyTally()
    const model = await modelOf(history, this.#folder)
    const { disk: onDisk, ...options } = history.setting
    const disk = onDisk ? mkdtempSync(join(this.#folder, 'disk-')) : null
    const setting: Opening = { ...options, model, disk }
    const numbers = [setting.flashAttention, setting.keyType, setting.valueType].join(' ')
    const reference = await this.#referenceFor(`${model} ${numbers}`, setting)
    const noise = await calibrated(this.noises, history, numbers, reference)
    if (existsSync(this.#log)) truncateSync(this.#log)
    const observer = new Observer(this.#log)
    const judge = new Judge(observer, reference, noise, tally, setting.ubatch)
    const telling = new Telling(
      history,
      setting,
      judge,
      observer,
      () => (this.#worker ??= new Worker(this.#log)),
      () => {
        this.#worker = null
      },
    )
    await telling.all()
    for (const complaint of observer.complaints) judge.blame('visible', history.ops.length, complaint)
    if (disk !== null) {
      // An open engine may still write to it.
      await this.#worker?.ask({ op: 'close' })
      rmSync(disk, { recursive: true, force: true })
    }
    return { violations: judge.violations, tally }
  }

  async close(): Promise<void> {
    await this.#worker?.end()
    this.#reference?.process.end()
    rmSync(this.#folder, { recursive: true, force: true })
  }

  async #referenceFor(key: string, { model, flashAttention, keyType, valueType }: Opening): Promise<Reference> {
    if (this.#reference?.key === key) return this.#reference.process
    this.#reference?.process.end()
    const process = await Reference.start({ model, cells: 4096, flashAttention: flashAttention === 'on', keyType, valueType })
    this.#reference = { key, process }
    return process
  }
}

/** One history as it goes on. */
class Telling {
  /** By talk: all that was shown of it, and whether only restores happened since. */
  readonly #shown = new Map<
    string,
    {
      tokens: (readonly number[])[]
      onlyRestores: boolean
      restored: boolean
      moved: boolean
      /** Its last step showed nothing approximate, and its client changed nothing before its last message since. */
      exact: boolean
      tenant: string
      contents: readonly string[]
    }
  >()
  #edits: 'tags' | 'checkpoints' = 'tags'
  #unsettled = false

  constructor(
    private readonly history: History,
    private readonly setting: Opening,
    private readonly judge: Judge,
    private readonly observer: Observer,
    private readonly worker: () => Worker,
    private readonly lost: () => void,
  ) {}

  async all(): Promise<void> {
    const opened = await this.worker().ask({ op: 'open', setting: this.setting })
    if (opened.error !== undefined) {
      this.judge.blame('error', -1, opened.error)
      this.lost()
      return
    }
    this.#edits = opened.edits ?? 'tags'
    this.observer.read()
    for (const [at, op] of this.history.ops.entries()) {
      await this.#one(at, op)
      if (this.worker().ended) {
        this.judge.blame('error', at, `the worker died in ${op.op}`)
        this.lost()
        return
      }
    }
  }

  /** Under `auto` something may be decoded between the engine's answer and the look at the calls: it is asked again. */
  async #count(at: number, said: WorkerSaid): Promise<void> {
    const differs = () => said.submitted !== undefined && said.submitted !== this.#cache?.decoded && !this.#unsettled
    for (let tries = this.#isAuto ? 20 : 0; tries > 0 && differs(); tries--) {
      said = await this.worker().ask({ op: 'check' })
      this.observer.read()
    }
    if (differs())
      this.judge.blame('counts', at, `${this.#cache?.decoded} tokens were decoded, the engine says ${said.submitted}`)
  }

  async #one(at: number, op: HistoryOp): Promise<void> {
    if (op.op === 'kill') {
      await this.#kill(op)
      return
    }
    const firstDecode = this.observer.decodes
    const cache = this.#cache
    if (cache !== undefined) cache.seen = []
    const decoded = cache?.decoded ?? 0
    // What the step could find is known only once its prompt is: nothing is decoded before the answer is read.
    const snapshot = cache === undefined ? null : cache.snapshot()
    const held = cache?.names ?? new Set<string>()
    const said = await this.worker().ask(op)
    this.observer.read()
    if (said.error !== undefined) {
      this.judge.blame('error', at, `${op.op}: ${said.error}`)
      return
    }
    const now = this.#cache
    if (op.op === 'begin')
      this.#shown.set(op.talk, {
        tokens: [],
        onlyRestores: false,
        restored: false,
        moved: false,
        exact: true,
        tenant: op.tenant,
        contents: [],
      })
    if (op.op === 'fork')
      this.#shown.set(op.talk, { ...this.#shown.get(op.from)!, tokens: [], onlyRestores: false, restored: false })
    if (op.op === 'rewrite' || op.op === 'back') this.#shown.get(op.talk)!.exact = false
    if (op.op === 'rewrite') {
      this.judge.tally.edits += op.edits.length
      this.#shown.get(op.talk)!.moved ||= op.edits.some(({ kind }) => kind === 'again')
    }
    if (op.op === 'reopen' || now === undefined) return
    if ('talk' in op && op.op !== 'step') {
      const talk = this.#shown.get(op.talk)
      if (talk !== undefined && said.refused === undefined) {
        // Messages that a client has moved stand no more in the order of what it sent before, and may be computed again.
        if (op.op === 'restore' || (op.op === 'back' && !talk.moved)) talk.restored = true
        else if (op.op !== 'search' && op.op !== 'fragment' && op.op !== 'begin') talk.onlyRestores = false
      }
    }
    const submitted = now.decoded - decoded
    this.judge.tally.tokens += submitted
    const steps = said.steps ?? []
    const shows = [...steps.map(showsOf), ...(op.op === 'refresh' || this.#isAuto ? this.#known() : [])]
    if (op.op !== 'summarise' && !(steps.some(isCancelled) && steps.length > 1)) this.judge.visible(at, now.seen, shows)
    if (op.op === 'check') await this.#count(at, said)
    const entries = [...steps.flatMap(({ ledger }) => ledger), ...(said.ledger ?? [])]
    const sum = entries.reduce((total, entry) => total + entry.submitted, 0)
    if (steps.length + (said.ledger?.length ?? 0) > 0 && sum !== submitted && !this.#isAuto)
      this.judge.blame('counts', at, `${submitted} tokens were decoded, the ledger says ${sum}`)
    for (const each of steps) {
      const talk = this.#shown.get(each.talk)
      const prompt = each.prompt
      const wasShown = talk?.tokens.some((tokens) => prompt.every((token, place) => tokens[place] === token)) ?? false
      const before = {
        exact:
          steps.length > 1 || this.#isAuto || this.#edits !== 'tags' || snapshot === null
            ? null
            : this.observer.exactBeginning(snapshot, prompt, each.tenant),
        isRestore:
          talk !== undefined && talk.onlyRestores && talk.restored && wasShown && this.#edits === 'tags' && steps.length === 1,
        // Of an answer that was not kept what announces it is not found again.
        least: this.#client ? ANNOUNCED : 1,
        ample: this.setting.hostBytes >= 2 ** 28,
        held,
        refreshes: this.#isAuto,
        isAlone: this.#isAlone,
      }
      await this.judge.step(at, each, now, firstDecode, before, steps.length === 1 && !this.#isAuto)
      const approximate = entries.reduce((most, entry) => Math.max(most, entry.approximate), 0)
      if (this.#client && talk?.exact === true && approximate > 0)
        this.judge.blame('exact', at, `${approximate} approximate tokens, though the client edited nothing`)
      if (talk !== undefined) {
        talk.exact = approximate === 0
        talk.tokens.push([...prompt, ...each.generated])
        talk.contents = each.contents
        talk.restored = false
        // An answer that was kept is a message more.
        talk.onlyRestores = true
      }
      if (op.op === 'step' && op.keep && talk !== undefined) talk.onlyRestores = true
    }
  }

  /** The engine's own; the twin's is the second. */
  get #cache() {
    const { caches } = this.observer
    return caches.at(this.setting.twin ? -2 : -1)
  }

  get #client(): boolean {
    return this.history.ops.some(({ op }) => op === 'rewrite')
  }

  get #isAlone(): boolean {
    return this.history.ops.filter(({ op }) => op === 'begin').length === 1
  }

  get #isAuto(): boolean {
    return this.history.contract === 'auto'
  }

  #known(): Shows[] {
    return [...this.#shown.values()].flatMap(({ tokens, tenant }) => tokens.map((all) => ({ tenant, tokens: all })))
  }

  /** Killed in the middle of a step; another worker goes on with the same disk tier and the same messages. */
  async #kill({ during, milliseconds }: Extract<HistoryOp, { op: 'kill' }>): Promise<void> {
    const dying = this.worker()
    void dying.ask(during)
    await sleep(milliseconds)
    await dying.kill()
    this.lost()
    this.observer.read()
    this.observer.restarted()
    const { worker } = this
    await worker().ask({ op: 'open', setting: this.setting })
    for (const [talk, { tenant, contents }] of this.#shown) {
      await worker().ask({ op: 'begin', talk, tenant })
      for (const [index, content] of contents.entries())
        await worker().ask({ op: 'add', talk, role: index === 0 ? 'system' : 'user', content })
    }
    for (const talk of this.#shown.values()) Object.assign(talk, { tokens: [], onlyRestores: false })
    this.observer.read()
  }
}

/** The noise of a setting, which begins with what fresh prefills of some lengths differ by. */
export async function calibrated(
  noises: Map<string, Noise>,
  { model, architecture }: HistoryModel,
  setting: string,
  reference: Reference,
): Promise<Noise> {
  const key = `${model ?? architecture} ${setting}`
  const known = noises.get(key)
  if (known !== undefined) return known
  const noise: Noise = { floor: 0, worst: 0 }
  noises.set(key, noise)
  for (let length = 90; length < 1100 && noise.floor <= MOST_NOISE; length += 90) {
    const tokens = Array.from({ length }, (_, at) => 60 + ((at * at * 7 + at * length) % 240))
    noise.floor = Math.max(noise.floor, (await reference.prefill(tokens, length - 4)).noise)
  }
  return noise
}

const isCancelled = ({ outcome }: StepSaid): boolean => outcome === 'cancelled' || outcome === 'engine/cancelled'

const showsOf = ({ tenant, prompt, generated }: StepSaid): Shows => ({ tenant, tokens: [...prompt, ...generated] })

export async function modelOf({ architecture, model }: HistoryModel, folder: string): Promise<string> {
  if (model !== undefined) return model
  // Heads of 32 numbers, as q8_0 needs.
  if (architecture === 'llama' || architecture === 'qwen2') return tinyModel({ architecture, heads: 2, kvHeads: 1 })
  if (architecture === 'cohere2') return slidingModel()
  const path = join(folder, `${architecture}.gguf`)
  if (!existsSync(path)) await synthesizeOther(path, architecture)
  return path
}
