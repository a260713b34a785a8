/** The routes `/v1/models` and `/v1/models/:id`, and `/models/load`, `/models/unload` and `/models/sse` of llama-server's router. */
import Type from 'typebox'
import type { SideModelStatus } from '../../ask.js'
import type { ThreadService } from '../../service.js'
import { FieldError } from '../../problem.js'
import type { ChangeStreams } from '../../routes/changes.js'
import { type App, described, type Ports } from '../../routes/route.js'
import type { VocabType } from '../../../native/types.js'
import type { ModelNumbers, ModelStatus } from '../../threads/status.js'

const NamedBody = Type.Object({ model: Type.String({ minLength: 1, maxLength: 1024 }) })

export function addModels(app: App, { service, refuseGuests }: Ports, streams: ChangeStreams): void {
  app.get('/v1/models', { schema: described('Models', 'openai') }, () => {
    const data = all(service)
    // Anthropic's client reads lists page by page, by `has_more` and the two ids.
    return { object: 'list', data, has_more: false, first_id: data[0]?.id ?? null, last_id: data.at(-1)?.id ?? null }
  })
  app.get(
    '/v1/models/*',
    {
      schema: {
        ...described('One model', 'openai'),
        params: Type.Object({ '*': Type.String() }),
      },
    },
    (request) => {
      const name = request.params['*']
      const models = all(service)
      const called = (alias: string) => models.find(({ aliases = [] }) => aliases.includes(alias))
      const model = models.find(({ id }) => id === name) ?? called(name) ?? called('*')
      if (model !== undefined) return model
      throw missing(name)
    },
  )
  const managing = (summary: string) => ({
    schema: { ...described(summary, 'llama-server'), body: NamedBody },
  })
  app.post('/v1/models/load', managing('Begins to load a model; /models says how far it is'), ({ body: { model }, tenant }) => {
    refuseGuests(tenant, 'load models')
    if (service.model(model).state === 'loaded') throw new FieldError('model', `The model ${model} is loaded already.`)
    // The model's state reports a failed load, so its error is not awaited here.
    service.load(model).catch(() => undefined)
    return { success: true }
  })
  app.post('/v1/models/unload', managing('Unloads a model that is not in use'), async ({ body: { model }, tenant }) => {
    refuseGuests(tenant, 'unload models')
    if (!(await service.unload(model))) throw new FieldError('model', `The model ${model} is not loaded.`)
    return { success: true }
  })
  app.get(
    '/v1/models/sse',
    { schema: described('Stream what is loaded and unloaded as server-sent events', 'llama-server') },
    (request, reply) => {
      streams.open(request, reply, (send) =>
        service.watchModels(({ name, adapters, state, failed }) => {
          const data = { status: state, ...(failed && state === 'unloaded' ? { exit_code: 1 } : {}) }
          for (const model of [name, ...adapters]) send({ data: { model, event: 'status_change', data } })
        }),
      )
    },
  )
}

const missing = (name: string): FieldError =>
  new FieldError(
    'model',
    `There is no model ${JSON.stringify(name.slice(0, 80))}; /v1/models lists those there are.`,
    'model/not-found',
  )

interface ModelEntry {
  readonly id: string
  readonly aliases?: readonly string[]
  readonly [field: string]: unknown
}

/** Returns all models: served ones first, then those only for embeddings or rankings. */
function all(service: ThreadService): readonly ModelEntry[] {
  const served = service.models().flatMap(({ name, aliases, adapters, since, state, failed, loaded }: ModelStatus) => {
    const known = loaded === null ? {} : { context: loaded.context, engine: loaded.engine, release: loaded.release }
    const context = contextOf(loaded)
    const model = {
      ...entryOf({ name, since, title: loaded?.title }, { state, ...known }),
      ...context,
      ...routed(state, failed),
      ...(aliases.length === 0 ? {} : { aliases }),
    }
    // The field `parent` is vLLM's.
    const adapted = adapters.map((adapter) => ({
      ...entryOf({ name: adapter, since, title: adapter }, { state, adapter: true, ...known }),
      ...context,
      ...routed(state, failed),
      parent: name,
    }))
    return [model, ...adapted]
  })
  const aside = service.sideModels().filter(({ name }) => !served.some(({ id }) => id === name))
  return [...served, ...aside.map(besides)]
}

/** Returns the fields that llama-server's page reads of every model. */
const routed = (state: ModelStatus['state'], failed = false): object => ({
  status: { value: state, ...(failed ? { failed } : {}) },
  architecture: { input_modalities: ['text'], output_modalities: ['text'] },
})

/**
 * Returns the context size under the names that clients look for: `max_model_len` (vLLM, SGLang), `meta.n_ctx` (llama-server),
 * `context_length` (OpenRouter), `context_window` (Groq), `max_input_tokens` (Anthropic). Empty while the model is not loaded.
 */
function contextOf(loaded: ModelStatus['loaded']): object {
  if (loaded === null) return {}
  const { context, numbers } = loaded
  const names = { max_model_len: context, context_length: context, context_window: context, max_input_tokens: context - 1 }
  return { ...names, meta: { n_ctx: context, ...(numbers === null ? {} : metaOf(numbers)) } }
}

/** Kinds of vocabularies, by their numbers in llama_vocab_type (llama.h). */
const VOCABULARIES: readonly VocabType[] = ['none', 'spm', 'bpe', 'wpm', 'ugm', 'rwkv', 'plamo2']

/** Returns a model's figures under llama-server's names. */
const metaOf = ({ parameters, bytes, embedding, trainedContext, vocabulary, vocabType, quantization }: ModelNumbers): object => ({
  vocab_type: VOCABULARIES.indexOf(vocabType),
  n_vocab: vocabulary,
  n_ctx_train: trainedContext,
  n_embd: embedding,
  n_params: parameters,
  size: bytes,
  ftype: quantization,
})

function besides({ name, use, since, state, loaded }: SideModelStatus): ModelEntry {
  const known = loaded === null ? {} : { context: loaded.tokens }
  const only = use === 'embeddings' ? { embeddings_only: true } : { rankings_only: true }
  return { ...entryOf({ name, since, title: loaded?.title }, { state, ...only, ...known }), ...routed(state) }
}

function entryOf(
  { name, since, title }: { readonly name: string; readonly since: number; readonly title: string | undefined },
  kvfold: object,
): ModelEntry {
  return {
    id: name,
    object: 'model',
    created: since,
    owned_by: 'kvfold',
    type: 'model',
    display_name: title ?? name,
    created_at: new Date(since * 1000).toISOString(),
    kvfold,
  }
}
