/** `kvfold pull`, `list` and `rm`: the models in the models folder. `kvfold ps`: the models that a running server has in memory. */
import { definedFields, isRecord, listAt } from '../../core/json.js'
import { stat } from 'node:fs/promises'
import type { Command } from 'commander'
import { KvfoldError } from '../../core/errors.js'
import { bytes, count } from '../../figures/numbers.js'
import { left, right, table, terminal } from '../../figures/table.js'
import { digestOf } from '../../models/facts.js'
import { modelsFolder, modelsIn, removeModel } from '../../models/folder.js'
import { pulled } from '../runtime.js'
import type { Shell } from '../shell.js'
import { printable } from '../terminal.js'

export function addPull(program: Command, { out, notes, interrupt }: Shell): void {
  program
    .command('pull')
    .description(
      'download a model from the Hugging Face hub into the folder of models (KVFOLD_MODELS); an interrupted download goes on. HF_TOKEN opens private repositories, HF_ENDPOINT names another hub',
    )
    .argument('<name>', 'hf:owner/repository[:quant], hf:owner/repository/file.gguf, or the address of a GGUF file')
    .action(async (name: string) => {
      const path = await pulled(name, notes, { signal: interrupt.signal })
      out.print(`${path}: ${bytes((await stat(path)).size)}`)
      const model = modelsIn(modelsFolder()).find((each) => each.path === path)
      if (model !== undefined) notes.prose(`kvfold chat --model ${model.name} talks to it.`, notes.colours.dim)
    })
}

export function addList(program: Command, { out, notes }: Shell): void {
  program
    .command('list')
    .alias('ls')
    .description('list the models in the folder of models')
    .option('--json', 'one JSON object a model, with its SHA-256')
    .action(async ({ json }: { json?: true }) => {
      const folder = modelsFolder()
      const models = modelsIn(folder)
      if (json === true) {
        for (const { name, aliases, path, size, modified, parts } of models)
          out.print(
            JSON.stringify({
              ...{ name, aliases, path, size, modified: new Date(modified).toISOString(), sha256: await digestOf(parts) },
            }),
          )
        return
      }
      if (models.length === 0)
        notes.prose(`There are no models in ${folder}; kvfold pull hf:owner/repository:quant gets one.`, notes.colours.dim)
      const rows = models.map(({ name, size, modified, aliases }) => [
        ...[name, bytes(size), new Date(modified).toISOString().slice(0, 10), aliases[0] ?? ''],
      ])
      if (rows.length === 0) return
      const titles = [left('name'), right('size'), left('date'), left('also')]
      for (const line of terminal(table(titles, rows))) out.print(printable(line))
    })
}

export function addRm(program: Command, { out }: Shell): void {
  program
    .command('rm')
    .description('delete a model from the folder of models')
    .argument('<name>', 'its name, as kvfold list has it')
    .action(async (name: string) => {
      const { path, size } = await removeModel(name)
      out.print(`Deleted ${path}: ${bytes(size)}`)
    })
}

interface PsFlags {
  readonly url: string
  readonly apiKey?: string
}

export function addPs(program: Command, shell: Shell): void {
  program
    .command('ps')
    .description('list the models that a running server has in memory')
    .option('--url <address>', 'the server', 'http://127.0.0.1:8080')
    .option('--api-key <key>', 'its key')
    .action((flags: PsFlags) => ps(flags, shell))
}

/** Whether `until` is a real date. For a model that is never unloaded, servers send none, the year 1, or a year after 2200. */
const isNear = (until: unknown): until is string => typeof until === 'string' && until > '0002' && until < '2200'

async function ps({ url, apiKey }: PsFlags, { out, notes, interrupt }: Shell): Promise<void> {
  const address = `${url.replace(/\/+$/, '')}/api/ps`
  const headers = definedFields({ authorization: apiKey === undefined ? undefined : `Bearer ${apiKey}` })
  let answer: Response
  let body: unknown
  try {
    answer = await fetch(address, { headers, signal: interrupt.signal })
    body = await answer.json()
  } catch (cause) {
    throw new KvfoldError('remote/unreachable', `No server answers at ${url}; start kvfold serve, or name another with --url.`, {
      cause,
    })
  }
  if (!answer.ok) {
    const said = isRecord(body) && typeof body['error'] === 'string' ? body['error'] : `it answers ${answer.status}`
    throw new KvfoldError('remote/refused', `${address}: ${said}`)
  }
  const models = listAt(body, 'models').filter(isRecord)
  if (models.length === 0) notes.prose('No model is in memory.', notes.colours.dim)
  const rows = models.map(({ name, size, context_length: context, expires_at: until }) => [
    String(name),
    bytes(Number(size ?? 0)),
    `${count(Number(context ?? 0))} tokens`,
    isNear(until) ? `until ${until.slice(0, 19).replace('T', ' ')}` : 'stays',
  ])
  if (rows.length === 0) return
  const titles = [left('name'), right('size'), right('context'), left('in memory')]
  for (const line of terminal(table(titles, rows))) out.print(printable(line))
}
