/** Owns whom a teacher speaks for: an agent with the context tools, or one without any tool. */
export const taughtAgents = ['sculptor', 'plain'] as const
export type TaughtAgent = (typeof taughtAgents)[number]
