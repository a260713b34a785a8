/** The thread of one ONNX model: opens it, counts tokens of texts, computes batches. `onnx.ts` sends the orders. */
import { type Delivery, delivered } from '../core/threads.js'
import { type OnnxScores, type OnnxVectors, openScores, openVectors } from './onnx-model.js'

export type OnnxOrder =
  | { readonly kind: 'open'; readonly use: 'vectors' | 'scores'; readonly model: string; readonly tokens: number | undefined }
  | { readonly kind: 'lengths'; readonly texts: readonly string[]; readonly query: string | undefined }
  | { readonly kind: 'vectors'; readonly texts: readonly string[] }
  | { readonly kind: 'scores'; readonly query: string; readonly documents: readonly string[] }

let vectors: OnnxVectors | null = null
let scores: OnnxScores | null = null

/** The function that the thread runs. @public */
export default function work(order: OnnxOrder): Promise<Delivery> {
  return delivered(() => carriedOut(order), 'native/failed')
}

async function carriedOut(order: OnnxOrder): Promise<unknown> {
  switch (order.kind) {
    case 'open': {
      const { use, model, tokens } = order
      const { name, most } = use === 'vectors' ? (vectors = await openVectors(model, tokens)) : (scores = await openScores(model))
      return { name, most }
    }
    case 'lengths': {
      const { texts, query } = order
      return query === undefined ? texts.map((text) => vectors!.length(text)) : texts.map((text) => scores!.length(query, text))
    }
    case 'vectors':
      return vectors!.embed(order.texts)
    case 'scores':
      return scores!.rank(order.query, order.documents)
  }
}
