/** Writes a tiny ONNX model by hand, in the protocol buffers of its format, with a tokenizer of whole words. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

/** A field of a message: a number, a text, or a message. */
type Field = readonly [field: number, value: number | string | Buffer]

function varint(value: number): Buffer {
  const bytes: number[] = []
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) + 128)
  return Buffer.from([...bytes, value])
}

const message = (...fields: readonly Field[]): Buffer =>
  Buffer.concat(
    fields.flatMap(([field, value]) => {
      if (typeof value === 'number') return [varint(field * 8), varint(value)]
      const bytes = Buffer.from(value)
      return [varint(field * 8 + 2), varint(bytes.length), bytes]
    }),
  )

const [FLOAT, INT64] = [1, 7]
const [INT, INTS] = [2, 7]

function value(name: string, type: number, ...dimensions: readonly (number | string)[]): Buffer {
  const dims = dimensions.map((size): Field => [1, message([typeof size === 'number' ? 1 : 2, size])])
  return message([1, name], [2, message([1, message([1, type], [2, message(...dims)])])])
}

const node = (type: string, input: string, output: string, ...attributes: readonly Buffer[]): Field => [
  1,
  message([1, input], [2, output], [4, type], ...attributes.map((attribute): Field => [5, attribute])),
]

/** Writes a reranker whose score of two texts is the number of their tokens, with those at their ends and between them. */
export function writePairScorer(folder: string): void {
  const graph = message(
    node('Cast', 'attention_mask', 'mask', message([1, 'to'], [3, FLOAT], [20, INT])),
    node('ReduceSum', 'mask', 'logits', message([1, 'axes'], [8, 1], [20, INTS]), message([1, 'keepdims'], [3, 1], [20, INT])),
    [2, 'pairs'],
    [11, value('input_ids', INT64, 'batch', 'tokens')],
    [11, value('attention_mask', INT64, 'batch', 'tokens')],
    [12, value('logits', FLOAT, 'batch', 1)],
  )
  const model = message([1, 7], [7, graph], [8, message([1, ''], [2, 12])])
  mkdirSync(join(folder, 'onnx'), { recursive: true })
  writeFileSync(join(folder, 'onnx/model.onnx'), model)
  const json = (name: string, content: object) => {
    writeFileSync(join(folder, name), JSON.stringify(content))
  }
  json('config.json', {
    ...{ model_type: 'bert', architectures: ['BertForSequenceClassification'], max_position_embeddings: 64 },
    id2label: { 0: 'score' },
  })
  json('tokenizer_config.json', { tokenizer_class: 'PreTrainedTokenizerFast', model_max_length: 64, pad_token: '[PAD]' })
  const ids = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', 'word']
  const special = (id: number) => ({
    ...{ id, content: ids[id], single_word: false, lstrip: false, rstrip: false, normalized: false, special: true },
  })
  const [cls, sep] = ['[CLS]', '[SEP]'].map((id) => ({ SpecialToken: { id, type_id: 0 } }))
  const text = (id: 'A' | 'B') => ({ Sequence: { id, type_id: 0 } })
  json('tokenizer.json', {
    ...{ version: '1.0', truncation: null, padding: null, normalizer: null, decoder: null },
    added_tokens: [0, 1, 2, 3].map(special),
    pre_tokenizer: { type: 'Whitespace' },
    post_processor: {
      type: 'TemplateProcessing',
      single: [cls, text('A'), sep],
      pair: [cls, text('A'), sep, text('B'), sep],
      special_tokens: Object.fromEntries(
        [2, 3].map((id) => [ids[id]!, { id: ids[id]!, ids: [id], tokens: [ids[id]!] }] as const),
      ),
    },
    model: { type: 'WordLevel', vocab: Object.fromEntries(ids.map((id, at) => [id, at])), unk_token: '[UNK]' },
  })
}
