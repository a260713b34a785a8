/** Owns which other names requests may call served models by (`--alias`). */
import { KvfoldError } from '../core/errors.js'
import type { ModelSource } from '../server/threads/models.js'

/** `alias`: each `name=model`, or a name of the first. @throws KvfoldError cli/bad-usage */
export function withAliases(models: readonly ModelSource[], alias: readonly string[] = []): readonly ModelSource[] {
  const pairs = alias.map((text) => {
    const [, name = text, model = models[0]?.name] = /^([^=]+)=(.+)$/.exec(text) ?? []
    if (models.some((each) => each.name === model)) return { name, model }
    throw new KvfoldError('cli/bad-usage', `--alias ${text} is of a model that is not served; give name=model as --model has it.`)
  })
  return models.map((model) => ({
    ...model,
    aliases: pairs.filter((pair) => pair.model === model.name).map(({ name }) => name),
  }))
}
