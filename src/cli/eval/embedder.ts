/** Owns `--embedder`: what makes vectors for agents that look for what is alike. */
import { statSync } from 'node:fs'
import { KvfoldError } from '../../core/errors.js'
import type { Engine } from '../../engine/engine.js'
import { LlamaEngine } from '../../engine/llama.js'
import type { AgentKind } from '../../eval/agent.js'
import { fallbackEmbedder, ggufEmbedder, onnxEmbedder, type OwnedTextEmbedder } from '../../eval/agents/embedders.js'
import { embeddingAgents } from '../../eval/agents/open.js'
import type { ModelFlags } from '../options.js'
import { embedderOptions, loadEmbedder } from '../runtime.js'
import type { Shell } from '../shell.js'

const ONNX = 'onnx:'

/** Null where no agent needs one. The caller disposes it, before the engine. @throws KvfoldError cli/bad-usage where one has to be named; as the embedders */
export async function embedderFor(
  agents: readonly AgentKind[],
  model: string | undefined,
  flags: ModelFlags,
  engine: Engine,
  { notes, interrupt }: Shell,
): Promise<OwnedTextEmbedder | null> {
  const needing = agents.filter((agent) => embeddingAgents.includes(agent))
  if (needing.length === 0) {
    if (model !== undefined)
      notes.prose('--embedder is not used: no agent of this run looks for what is alike.', notes.colours.dim)
    return null
  }
  if (model === undefined) {
    if (engine instanceof LlamaEngine) return fallbackEmbedder(engine, embedderOptions(flags))
    throw new KvfoldError(
      'cli/bad-usage',
      `${needing.join(' and ')} cannot do without vectors of texts; name what makes them with --embedder.`,
    )
  }
  if (model.startsWith(ONNX)) return onnxEmbedder(model.slice(ONNX.length))
  if (statSync(model, { throwIfNoEntry: false })?.isDirectory() === true) return onnxEmbedder(model)
  return ggufEmbedder(await loadEmbedder({ ...flags, model }, notes, interrupt.signal), model)
}
