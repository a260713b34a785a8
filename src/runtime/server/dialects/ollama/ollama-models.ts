/** Ollama's routes about models: `/api/tags`, `/api/ps`, `/api/show` and `/api/pull`; also reads `keep_alive`. */
import { createHash } from 'node:crypto'
import { Readable } from 'node:stream'
import Type from 'typebox'
import { KvfoldError } from '../../../core/errors.js'
import { Feed } from '../../../core/feed.js'
import { definedFields } from '../../../core/json.js'
import { magnitude } from '../../../figures/numbers.js'
import type { PullProgress } from '../../../models/folder.js'
import type { ServedFile } from '../../ask.js'
import type { ThreadService } from '../../service.js'
import { nullsDownTo } from '../fields.js'
import { FieldError, problemOf } from '../../problem.js'
import { type App, described, type Ports, type PullModel, whileConnected } from '../../routes/route.js'
import type { ModelStatus } from '../../threads/status.js'

const NameField = Type.Optional(Type.String({ maxLength: 1024 }))

const ShowBody = Type.Object({ model: NameField, name: NameField, verbose: Type.Optional(Type.Boolean()) })

const PullBody = Type.Object({
  model: NameField,
  name: NameField,
  stream: Type.Optional(Type.Boolean({ description: 'default true: one JSON object a line' })),
  insecure: Type.Optional(Type.Boolean({ description: 'has no effect' })),
})

export function addOllamaModels(app: App, { service, pull, refuseGuests }: Ports): void {
  app.get('/api/tags', { schema: described('Models (Ollama)', 'ollama') }, async () => ({
    models: await Promise.all(service.models().map((model) => tag(service, model))),
  }))
  app.get('/api/ps', { schema: described('Models in memory (Ollama)', 'ollama') }, async () => ({
    models: await Promise.all(
      service
        .models()
        .filter(({ state }) => state === 'loaded')
        .map(async (model) => ({
          ...(await tag(service, model)),
          size_vram: 0,
          expires_at: new Date(model.until ?? NEVER).toISOString(),
        })),
    ),
  }))
  const show = { schema: { ...described('One model (Ollama)', 'ollama'), body: ShowBody }, preValidation: nullsDownTo(2) }
  app.post('/api/show', show, async ({ body }, reply) => {
    const name = nameIn(service, body.model ?? body.name)
    const file = await service.file(name)
    if (file?.facts != null) return shown(file, file.facts, service.model(name).loaded?.context)
    const { loaded } = await service.load(name, whileConnected(reply))
    return {
      details: detailsOf(file),
      model_info: { 'general.architecture': 'kvfold', 'kvfold.context_length': loaded?.context },
      capabilities: ['completion', 'tools'],
    }
  })
  app.post(
    '/api/pull',
    {
      schema: { ...described('Downloads a model of the hub (Ollama)', 'ollama'), body: PullBody },
      preValidation: nullsDownTo(2),
    },
    async (request, reply) => {
      const { body, tenant } = request
      refuseGuests(tenant, 'pull models')
      const name = body.model ?? body.name
      if (name === undefined) throw new FieldError('model', 'model is missing; send hf.co/owner/repository:quant.')
      if (pull === null)
        throw new KvfoldError(
          'server/unsupported',
          'This server pulls no models; start it with --models FOLDER, or use kvfold pull.',
        )
      const signal = whileConnected(reply)
      if (body.stream === false) {
        await pull(hubName(name), { signal, onProgress: () => undefined })
        return { status: 'success' }
      }
      // `hubName` must run before the stream begins, so that a wrong name gets an HTTP error.
      const lines = pullLines(pull, hubName(name), signal)
      return reply.type('application/x-ndjson').send(Readable.from(lines))
    },
  )
}

/**
 * Returns the hub name for a name from a client, which may contain the hub's host. Models elsewhere are refused.
 * @throws FieldError
 */
function hubName(name: string): string {
  const plain = name.replace(/^(?:https?:\/\/)?(?:hf\.co|huggingface\.co)\//i, '').replace(/^(?:hf|huggingface):/i, '')
  if (/^[\w][\w.-]*\/[\w][\w.-]*(?:\/[\w./-]+\.gguf|:[\w.-]+)?$/.test(plain) && !plain.includes('..')) return `hf:${plain}`
  throw new FieldError(
    'model',
    `${JSON.stringify(name.slice(0, 80))} is no model of the Hugging Face hub; send hf.co/owner/repository:quant, such as hf.co/Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M.`,
  )
}

/** Milliseconds between two progress lines of one file. */
const OFTEN = 100

function pullLines(pull: PullModel, name: string, signal: AbortSignal): Feed<string, void> {
  let told = 0
  return new Feed(async (push) => {
    const say = (line: object) => {
      push(`${JSON.stringify(line)}\n`)
    }
    say({ status: 'pulling manifest' })
    const onProgress = (progress: PullProgress) => {
      if (progress.kind === 'checking') say({ status: 'verifying sha256 digest' })
      if (progress.kind !== 'downloading') return
      const now = performance.now()
      if (now - told < OFTEN && progress.done !== progress.total && progress.done !== 0) return
      told = now
      const { digest, file, total, done } = progress
      const what = digest === null ? file : digest.slice(0, 12)
      say({
        status: `pulling ${what}`,
        ...definedFields({ digest: digest === null ? undefined : `sha256:${digest}` }),
        total,
        completed: done,
      })
    }
    try {
      await pull(name, { signal, onProgress })
      say({ status: 'writing manifest' })
      say({ status: 'success' })
    } catch (error) {
      say({ error: problemOf(error).message })
    }
  })
}

/** `expires_at` of a model that stays loaded: Ollama's clients need a date, and show a distant one as "forever". */
const NEVER = Date.UTC(2300, 0)

/** Milliseconds that a list of models waits for the files' hashes. */
const PATIENCE = 1000

async function tag(service: ThreadService, { name, since, bytes, loaded }: ModelStatus): Promise<object> {
  const file = await service.file(name)
  const digest = file === null ? '' : await Promise.race([file.digest, later('', PATIENCE)])
  return {
    ...{ name, model: name, modified_at: new Date(file?.modified ?? since * 1000).toISOString(), size: file?.size ?? bytes ?? 0 },
    // Ollama's clients need a digest. If the file's is unknown or not ready yet, the hash of the name replaces it.
    digest: digest === '' ? createHash('sha256').update(name).digest('hex') : digest,
    details: detailsOf(file),
    ...(loaded === null ? {} : { context_length: loaded.context }),
  }
}

const later = <T>(value: T, milliseconds: number): Promise<T> =>
  new Promise((resolve) => {
    setTimeout(resolve, milliseconds, value).unref()
  })

/** Returns the field `details` of a model; texts are empty where its file is unknown. */
function detailsOf(file: ServedFile | null): object {
  const { architecture: family = 'kvfold', parameters = 0, quantization = '' } = file?.facts ?? {}
  return {
    ...{ parent_model: '', format: 'gguf', family, families: [family] },
    ...{ parameter_size: parameters === 0 ? '' : magnitude(parameters), quantization_level: quantization },
  }
}

/** Architectures of models that only make embeddings or scores. */
const ENCODERS = /bert|^t5encoder$/

/** Matches chat templates with reasoning. */
const THINKS = /\b(?:enable_thinking|thinking|reasoning_effort)\b|<\/?think>/

/** @param context cells of the loaded model's cache. Clients read it as the context window, which may be smaller than the trained one */
function shown(
  file: ServedFile,
  { architecture, metadata, template, parameters }: NonNullable<ServedFile['facts']>,
  context: number | undefined,
): object {
  const window = `${architecture}.context_length`
  const chats = template === '' ? ['completion'] : ['completion', 'tools', ...(THINKS.test(template) ? ['thinking'] : [])]
  return {
    details: detailsOf(file),
    model_info: { ...metadata, 'general.parameter_count': parameters, ...(context === undefined ? {} : { [window]: context }) },
    // LiteLLM sends tools only if the template contains the word `tools`.
    template: template === '' || /tools/.test(template) ? template : `${template}{# kvfold shows tools in a system message #}`,
    capabilities: ENCODERS.test(architecture) ? ['embedding'] : chats,
    modified_at: new Date(file.modified).toISOString(),
  }
}

/** Returns the server's name of a model, given the client's, to which Ollama's clients may append `:latest`. */
export function nameIn(service: ThreadService, name: string | undefined): string | undefined {
  const names = [
    ...service.models().flatMap(({ name: own, aliases, adapters }) => [own, ...aliases, ...adapters]),
    ...service.sideModels().map(({ name: own }) => own),
  ]
  return name === undefined || names.includes(name) ? name : name.replace(/:latest$/, '')
}

const UNITS: Readonly<Record<string, number>> = { ns: 1e-6, us: 1e-3, µs: 1e-3, ms: 1, s: 1000, m: 60_000, h: 3_600_000 }

/**
 * Parses Ollama's `keep_alive`: seconds, or a duration such as `5m` or `1h30m`. Returns milliseconds, Infinity for a negative value, null
 * when absent.
 */
export function keepAliveOf(given: string | number | undefined): number | null {
  if (given === undefined || given === '') return null
  const text = String(given)
  const number = Number(text)
  if (Number.isFinite(number)) return number < 0 ? Infinity : number * 1000
  const [, sign = '', all = ''] = /^([+-]?)((?:\d+(?:\.\d*)?(?:ns|us|µs|ms|s|m|h))+)$/.exec(text) ?? []
  if (all === '') throw new FieldError('keep_alive', 'keep_alive must be seconds, or a time such as 5m or 1h30m.')
  const parts = [...all.matchAll(/([\d.]+)(ns|us|µs|ms|s|m|h)/g)]
  const sum = parts.reduce((total, [, value, unit]) => total + Number(value) * UNITS[unit!]!, 0)
  return sign === '-' && sum > 0 ? Infinity : sum
}
