/** Owns which numbers can be token ids. */

/** The largest number that llama.cpp has for a token; larger ones would come out as others. */
export const LARGEST_TOKEN = 0x7fffffff

export const isTokenList = (list: readonly unknown[]): list is readonly number[] =>
  list.every((token) => Number.isInteger(token) && Number(token) >= 0 && Number(token) <= LARGEST_TOKEN)
