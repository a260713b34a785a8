/** Owns the figures over time: what a sample of the server holds, and rates between samples. Pure. */
import type { ServiceStatus } from './wire.js'

/** The server at one moment; counters count from its start. Null: the server does not say. */
export interface ServerSample {
  /** Milliseconds; only differences mean anything. */
  readonly at: number
  readonly running: number
  readonly waiting: number
  /** Tokens submitted to decode, over all loaded models. */
  readonly submitted: number | null
  readonly generated: number | null
  readonly prompt: number | null
  readonly cached: number | null
  /** Cells, over all loaded models. */
  readonly cells: number
  readonly used: number
  readonly parked: number
  /** Bytes of sequences that were moved off the device. */
  readonly host: number
  readonly disk: number
  /** Bytes of the server's process. */
  readonly resident: number | null
}

/** Sum of a metric's series in Prometheus' text form; null when it is not there. */
export function metricIn(text: string, name: string): number | null {
  let sum: number | null = null
  for (const line of text.split('\n')) {
    if (!line.startsWith(name)) continue
    const [, value] = /^(?:\{.*\})? (\S+)/.exec(line.slice(name.length)) ?? []
    if (value !== undefined) sum = (sum ?? 0) + Number(value)
  }
  return sum
}

/** @param metrics text of `/metrics` */
export function sampleOf(at: number, { models, running, queue }: ServiceStatus, metrics: string): ServerSample {
  const loaded = models.map((model) => model.loaded).filter((each) => each !== null)
  const caches = loaded.map(({ cache }) => cache).filter((cache) => cache !== null)
  const total = (figures: readonly number[]) => figures.reduce((sum, figure) => sum + figure, 0)
  const counted = loaded.map(({ submitted }) => submitted).filter((count) => count !== null)
  return {
    at,
    running,
    waiting: queue.waiting,
    submitted: counted.length === 0 ? null : total(counted),
    generated: metricIn(metrics, 'kvfold_generation_tokens_total'),
    prompt: metricIn(metrics, 'kvfold_prompt_tokens_total'),
    cached: metricIn(metrics, 'kvfold_prompt_tokens_cached_total'),
    cells: total(caches.map(({ cells }) => cells)),
    used: total(caches.map(({ used }) => used)),
    parked: total(caches.map(({ parked }) => parked)),
    host: total(caches.map(({ tiers }) => tiers.host.bytes)),
    disk: total(caches.map(({ tiers }) => tiers.disk.bytes)),
    resident: metricIn(metrics, 'process_resident_memory_bytes'),
  }
}

/** Per second between neighbours, so one figure less than samples; 0 where the counter began anew or is not there. */
export function rates(samples: readonly ServerSample[], counter: (sample: ServerSample) => number | null): number[] {
  return samples.slice(1).map((sample, at) => {
    const before = samples[at]!
    const [from, to] = [counter(before), counter(sample)]
    const seconds = (sample.at - before.at) / 1000
    return from === null || to === null || to < from || seconds <= 0 ? 0 : (to - from) / seconds
  })
}
