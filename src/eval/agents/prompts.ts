/** Owns what the baselines say to the model: to the effect of the originals' prompts, in our own words. */
import type { ChatMessage } from '../../chat/message.js'

/** Answer from retrieved passages and nothing else (Sculptor, D.4: RAG), the best passage first. */
export const passagesPrompt = (question: string, passages: readonly string[]): readonly ChatMessage[] => [
  {
    role: 'system',
    content:
      'You answer questions about a long text of which you see a few passages. They were picked by a search, the most relevant first. ' +
      'Answer strictly from these passages and in the form that is asked for. Use nothing that you know from elsewhere.',
  },
  { role: 'user', content: `Passages:\n\n${passages.map((passage) => passage.trim()).join('\n\n')}\n\nQuestion:\n${question}` },
]

/** Rewrite the memory after one more part of the text (MemAgent). What stays the same in all calls comes first. */
export const memoryPrompt = (question: string, memory: string, part: string): readonly ChatMessage[] => [
  {
    role: 'user',
    content:
      'You read a long text part by part and keep a memory of what is needed to solve a problem about it. Below are the problem, your ' +
      'memory so far and the next part of the text. Write the whole memory anew: keep everything in it that is still of use, and add ' +
      'what this part has to say about the problem. You will not see this part again.\n\n' +
      `Problem:\n${question}\n\nMemory:\n${memoryOr(memory)}\n\nNext part:\n${part.trim()}\n\nThe new memory:`,
  },
]

/** Answer from the memory alone (MemAgent). */
export const fromMemoryPrompt = (question: string, memory: string): readonly ChatMessage[] => [
  {
    role: 'user',
    content:
      'You have read a long text and kept a memory of it. Solve the problem by what the memory says, and answer in the form that is ' +
      `asked for.\n\nProblem:\n${question}\n\nMemory:\n${memoryOr(memory)}\n\nYour answer:`,
  },
]

const memoryOr = (memory: string): string => (memory.trim() === '' ? '(nothing yet)' : memory)

/** Facts of one part of the text that bear on the question (Mem0, its extraction turned from a user's likings to a document, D.4). */
export const factsPrompt = (question: string, part: string): readonly ChatMessage[] => [
  {
    role: 'system',
    content:
      'You collect facts from a document. From the part you are shown, take every fact that may help to answer the question. Write each ' +
      'as a short sentence that can be understood alone, with names, numbers and words exactly as they stand there. Add nothing. Reply ' +
      'with JSON alone: {"facts": ["...", "..."]}; {"facts": []} when there are none.',
  },
  { role: 'user', content: `Question:\n${question}\n\nPart of the document:\n${part.trim()}` },
]

/** A fact as the model is shown it, under a small number instead of its real id. */
export interface NumberedFact {
  readonly id: string
  readonly text: string
}

/** What new facts change about those that are stored (Mem0). */
export const decisionsPrompt = (stored: readonly NumberedFact[], facts: readonly string[]): readonly ChatMessage[] => [
  {
    role: 'system',
    content:
      'You keep a store of facts in order. You see stored facts, each with an id, and new facts. Decide what is to be done, one entry a ' +
      'decision: ADD a new fact that the store has nothing about (id: an empty text); UPDATE a stored fact that a new one corrects or ' +
      'says more about (its id, and the full new text); DELETE a stored fact that a new one shows to be wrong (its id); NONE for a stored ' +
      'fact that stays as it is (its id). Reply with JSON alone: {"decisions": [{"event": "ADD", "id": "", "text": "..."}]}.',
  },
  { role: 'user', content: `Stored facts:\n${JSON.stringify(stored)}\n\nNew facts:\n${JSON.stringify(facts)}` },
]

/** Answer from the facts that were found (Mem0), the best first. */
export const fromFactsPrompt = (question: string, facts: readonly string[]): readonly ChatMessage[] => [
  {
    role: 'system',
    content:
      'You answer questions about a long document from facts that were collected from it, the most relevant first. Answer from these facts ' +
      'and in the form that is asked for.',
  },
  {
    role: 'user',
    content: `Facts:\n${facts.length === 0 ? '(none)' : facts.map((fact) => `- ${fact}`).join('\n')}\n\nQuestion:\n${question}`,
  },
]
