/**
 * Prometheus metrics. Names follow OpenTelemetry (`gen_ai_server_*`, `http_server_*`) and prom-client (`process_*`, `nodejs_*`) where these
 * have one; others begin with `kvfold_`. Some values also appear under vLLM's names, which routers and benchmarks read.
 */
import { collectDefaultMetrics, Counter, Gauge, Histogram, Registry } from 'prom-client'
import type { EngineStatus } from '../engine/elsewhere.js'
import type { AnyAnswer, AskEvent, SideModelStatus } from './ask.js'
import type { ThreadService } from './service.js'
import type { ServiceStatus } from './threads/status.js'

/** Histogram buckets in seconds, as OpenTelemetry advises for generative models. */
const FIRST_TOKEN = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60]
const PER_TOKEN = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5]
const REQUEST = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68]

const MODEL = 'gen_ai_request_model'
/** The label that vLLM gives the model. */
const VLLM_MODEL = 'model_name'

/** Measures one request from its arrival, by the times at which its events reach the client. */
export interface AskMeter {
  on(event: AskEvent): void
  done(answer: AnyAnswer): void
  failed(code: string): void
}

/** Measures one request for embeddings or rankings from its arrival. */
export interface SideMeter {
  /** The request was answered. @param results the number of vectors or scores */
  done(model: string, tokens: number, results: number): void
  failed(code: string): void
}

export class Metrics {
  readonly #registry = new Registry()
  readonly #firstToken = this.#histogram(
    'gen_ai_server_time_to_first_token_seconds',
    'Time from the request to its first token.',
    FIRST_TOKEN,
  )
  readonly #perToken = this.#histogram(
    'gen_ai_server_time_per_output_token_seconds',
    'Mean time per token of an answer, after its first token.',
    PER_TOKEN,
  )
  readonly #duration = this.#histogram(
    'gen_ai_server_request_duration_seconds',
    'Time from the request to its last token.',
    REQUEST,
  )
  readonly #gap = this.#histogram('kvfold_inter_token_latency_seconds', 'Time between one token and the next.', PER_TOKEN)
  readonly #http = new Histogram({
    name: 'http_server_request_duration_seconds',
    help: 'HTTP requests, by route and status.',
    labelNames: ['http_request_method', 'http_route', 'http_response_status_code'],
    buckets: REQUEST,
    registers: [this.#registry],
  })
  readonly #prompt = this.#counter('kvfold_prompt_tokens_total', 'Tokens of prompts.', [MODEL])
  readonly #cached = this.#counter('kvfold_prompt_tokens_cached_total', 'Prompt tokens that came from the cache.', [MODEL])
  readonly #saved = this.#counter(
    'kvfold_saved_tokens_total',
    'Tokens that a plain prefix cache would have computed in addition.',
    [MODEL],
  )
  readonly #savedSeconds = this.#counter('kvfold_saved_seconds_total', 'Time that these tokens would have taken.', [MODEL])
  readonly #extra = this.#counter('kvfold_extra_tokens_total', 'Tokens that a plain prefix cache would not have computed.', [
    MODEL,
  ])
  readonly #generated = this.#counter('kvfold_generation_tokens_total', 'Tokens generated.', [MODEL])
  readonly #vllm = {
    prompt: this.#counter('vllm:prompt_tokens_total', 'As kvfold_prompt_tokens_total.', [VLLM_MODEL]),
    generated: this.#counter('vllm:generation_tokens_total', 'As kvfold_generation_tokens_total.', [VLLM_MODEL]),
    queried: this.#counter('vllm:prefix_cache_queries_total', 'As kvfold_prompt_tokens_total.', [VLLM_MODEL]),
    hits: this.#counter('vllm:prefix_cache_hits_total', 'As kvfold_prompt_tokens_cached_total.', [VLLM_MODEL]),
  }
  readonly #finished = this.#counter('kvfold_answers_total', 'Answers by how they ended.', [MODEL, 'finish'])
  readonly #aside = {
    embeddings: {
      duration: this.#histogram(
        'kvfold_embedding_request_duration_seconds',
        'Time from the request for embeddings to its vectors.',
        REQUEST,
      ),
      tokens: this.#counter('kvfold_embedding_tokens_total', 'Tokens embedded.', [MODEL]),
      results: this.#counter('kvfold_embeddings_total', 'Vectors made.', [MODEL]),
    },
    rankings: {
      duration: this.#histogram(
        'kvfold_rerank_request_duration_seconds',
        'Time from the request for a ranking to its scores.',
        REQUEST,
      ),
      tokens: this.#counter('kvfold_rerank_tokens_total', 'Tokens read for rankings.', [MODEL]),
      results: this.#counter('kvfold_reranked_documents_total', 'Documents scored.', [MODEL]),
    },
  }
  readonly #failed = this.#counter('kvfold_failures_total', 'Requests that got no answer, by error code.', ['code'])

  constructor(service: Pick<ThreadService, 'status' | 'sideModels'>) {
    collectDefaultMetrics({ register: this.#registry })
    this.#gauges(service)
    this.#diskCache(service)
    this.#sharedCache(service)
    this.#engines(service)
  }

  get contentType(): string {
    return this.#registry.contentType
  }

  /** Leaves out NaN samples, about which readers warn: the event loop has such values after a scrape. */
  async text(): Promise<string> {
    return (await this.#registry.metrics()).replaceAll(/^.* NaN\n/gim, '')
  }

  request(method: string, route: string, status: number, seconds: number): void {
    this.#http.observe({ http_request_method: method, http_route: route, http_response_status_code: status }, seconds)
  }

  aside(use: SideModelStatus['use']): SideMeter {
    const begun = performance.now()
    const counted = this.#aside[use]
    return {
      done: (model, tokens, results) => {
        const labels = { [MODEL]: model }
        counted.duration.observe(labels, seconds(performance.now() - begun))
        counted.tokens.inc(labels, tokens)
        counted.results.inc(labels, results)
      },
      failed: (code) => {
        this.#failed.inc({ code })
      },
    }
  }

  ask(): AskMeter {
    const begun = performance.now()
    let first: number | null = null
    let last = begun
    let model = ''
    return {
      on: (event) => {
        if (event.type === 'started') model = event.model
        if (event.type !== 'tokens') return
        const now = performance.now()
        if (first === null) this.#firstToken.observe({ [MODEL]: model }, seconds((first = now) - begun))
        else this.#gap.observe({ [MODEL]: model }, seconds(now - last))
        last = now
      },
      done: ({ model: name, finish, usage }) => {
        const labels = { [MODEL]: name }
        const now = performance.now()
        this.#duration.observe(labels, seconds(now - begun))
        if (first !== null && usage.completionTokens > 1)
          this.#perToken.observe(labels, seconds(now - first) / (usage.completionTokens - 1))
        this.#prompt.inc(labels, usage.promptTokens)
        this.#cached.inc(labels, usage.cachedTokens)
        const { saved = { tokens: 0, seconds: 0 } } = usage
        this.#saved.inc(labels, Math.max(0, saved.tokens))
        this.#savedSeconds.inc(labels, Math.max(0, saved.seconds))
        this.#extra.inc(labels, Math.max(0, -saved.tokens))
        this.#generated.inc(labels, usage.completionTokens)
        this.#finished.inc({ ...labels, finish })
        const vllm = { [VLLM_MODEL]: name }
        this.#vllm.prompt.inc(vllm, usage.promptTokens)
        this.#vllm.generated.inc(vllm, usage.completionTokens)
        this.#vllm.queried.inc(vllm, usage.promptTokens)
        this.#vllm.hits.inc(vllm, usage.cachedTokens)
      },
      failed: (code) => {
        this.#failed.inc({ code })
      },
    }
  }

  /** Adds gauges, read from the service's state at each scrape. */
  #gauges(service: Pick<ThreadService, 'status' | 'sideModels'>): void {
    const gauge = (name: string, help: string, value: (status: ServiceStatus) => number) => {
      this.#read(name, help, [], () => [[{}, value(service.status())]])
    }
    const perModel = (name: string, help: string, value: (loaded: LoadedModel) => number | undefined) => {
      this.#read(name, help, [MODEL], () =>
        service.status().models.flatMap(({ name: model, loaded }) => {
          const figure = loaded === null ? undefined : value(loaded)
          return figure === undefined ? [] : [[{ [MODEL]: model }, figure] as const]
        }),
      )
    }
    gauge('kvfold_requests_running', 'Requests that are running.', ({ running }) => running)
    gauge('kvfold_requests_waiting', 'Requests in the queue.', ({ queue }) => queue.waiting)
    gauge('vllm:num_requests_running', 'As kvfold_requests_running.', ({ running }) => running)
    gauge('vllm:num_requests_waiting', 'As kvfold_requests_waiting.', ({ queue }) => queue.waiting)
    gauge('kvfold_queue_limit', 'Most requests that may wait in the queue.', ({ queue }) => queue.limit)
    gauge('kvfold_threads', 'Live conversations.', ({ threads }) => threads)
    gauge(
      'kvfold_threads_damaged',
      'Conversations that the store can no longer read unchanged.',
      ({ damaged }) => damaged.threads,
    )
    gauge(
      'kvfold_responses_damaged',
      'Responses that the store can no longer read unchanged.',
      ({ damaged }) => damaged.responses,
    )
    this.#read(
      'kvfold_model_loaded',
      'Whether the model is in memory: 1 or 0. Models that only embed or rank are included.',
      [MODEL],
      () =>
        [...service.sideModels(), ...service.status().models].map(({ name, state }) => [
          { [MODEL]: name },
          state === 'loaded' ? 1 : 0,
        ]),
    )
    perModel('kvfold_slots', 'Steps that run at once.', ({ slots }) => slots)
    perModel('kvfold_cache_cells', 'Cells of the KV cache.', ({ cache }) => cache?.cells)
    perModel('kvfold_cache_cells_used', 'Cells in use, parked ones included.', ({ cache }) => cache?.used)
    perModel('kvfold_cache_cells_parked', 'Cells of text that is hidden or superseded now.', ({ cache }) => cache?.parked)
    perModel(
      'kvfold_tokens_submitted',
      'Tokens submitted to decode since the model was loaded.',
      ({ submitted }) => submitted ?? undefined,
    )
  }

  /** Adds metrics of the disk tier. A reload of the model resets them to zero. */
  #diskCache(service: Pick<ThreadService, 'status'>): void {
    const tiers = () =>
      service.status().models.flatMap(({ name, loaded }) => {
        const { refused = 0, onDisk = null } = loaded?.cache?.tiers ?? {}
        return onDisk === null ? [] : [{ labels: { [MODEL]: name }, refused, onDisk }]
      })
    this.#read(
      'kvfold_disk_cache_refused_total',
      'Saved sequences that were damaged, of another format or under another secret. The server deletes them and computes them again.',
      [MODEL],
      () => tiers().map(({ labels, refused }) => [labels, refused]),
    )
    this.#read(
      'kvfold_disk_cache_lost_total',
      'Saved sequences lost otherwise: not readable, deleted by another process (gone), deleted for room (evicted), not written (failed).',
      [MODEL, 'how'],
      () =>
        tiers().flatMap(({ labels, onDisk }) =>
          (['unreadable', 'gone', 'evicted', 'failed'] as const).map((how) => [{ ...labels, how }, onDisk[how]] as const),
        ),
    )
  }

  /** Adds metrics of the cache in a folder that servers share. A reload of the model resets them to zero. */
  #sharedCache(service: Pick<ThreadService, 'status'>): void {
    this.#read(
      'kvfold_shared_cache_blocks_total',
      'Blocks of cells in the folder of --shared-cache: read, written, deleted for room (evicted), damaged and deleted (refused), neither readable nor writable (failed).',
      [MODEL, 'how'],
      () =>
        service
          .status()
          .models.flatMap(({ name, loaded }) =>
            Object.entries<number>({ ...loaded?.cache?.shared }).map(([how, count]) => [{ [MODEL]: name, how }, count] as const),
          ),
    )
  }

  /** Adds metrics of the engines behind `--engine`, counted since each was added. */
  #engines(service: Pick<ThreadService, 'status'>): void {
    const each = () =>
      service
        .status()
        .models.flatMap(({ name: model, loaded }) =>
          (loaded?.engines ?? []).map((engine) => ({ engine, labels: { [MODEL]: model, engine: engine.name } })),
        )
    const read = (name: string, help: string, value: (engine: EngineStatus) => number) => {
      this.#read(name, help, [MODEL, 'engine'], () => each().map(({ labels, engine }) => [labels, value(engine)]))
    }
    read('kvfold_engine_up', 'Whether the engine takes requests: 1 or 0.', ({ state }) => (state === 'up' ? 1 : 0))
    read('kvfold_engine_requests_open', 'Requests that the engine is running.', ({ open }) => open)
    read('kvfold_engine_requests_total', 'Requests sent to the engine.', ({ requests }) => requests)
    read('kvfold_engine_failures_total', 'Requests that the engine failed.', ({ failures }) => failures)
    read('kvfold_engine_moved_total', 'Conversations that moved here from another engine.', ({ moved }) => moved)
    read('kvfold_engine_prompt_tokens_total', 'Tokens of prompts sent to the engine.', ({ prompt }) => prompt)
    read('kvfold_engine_prompt_tokens_cached_total', 'Prompt tokens that the engine reports as cached.', ({ cached }) => cached)
    read(
      'kvfold_engine_prompt_tokens_expected_total',
      'Prompt tokens that kvfold expected to be cached.',
      ({ expected }) => expected,
    )
  }

  /** Adds a metric that is read at each scrape: a counter if its name ends with `_total`, else a gauge. */
  #read(
    name: string,
    help: string,
    labelNames: string[],
    values: () => readonly (readonly [labels: Record<string, string>, value: number])[],
  ): void {
    const collect = () => {
      metric.reset()
      for (const [labels, value] of values())
        if (metric instanceof Gauge) metric.set(labels, value)
        else metric.inc(labels, value)
    }
    const options = { name, help, labelNames, collect, registers: [this.#registry] }
    const metric = name.endsWith('_total') ? new Counter(options) : new Gauge(options)
  }

  #histogram(name: string, help: string, buckets: readonly number[]): Histogram<typeof MODEL> {
    return new Histogram({ name, help, labelNames: [MODEL], buckets: [...buckets], registers: [this.#registry] })
  }

  #counter<L extends string>(name: string, help: string, labelNames: readonly L[]): Counter<L> {
    return new Counter({ name, help, labelNames: [...labelNames], registers: [this.#registry] })
  }
}

type LoadedModel = NonNullable<ServiceStatus['models'][number]['loaded']>

const seconds = (milliseconds: number): number => milliseconds / 1000
