/** Owns what a figure of a report is: a drawing, or why there is none. */

export interface Picture {
  /** File name without its ending. */
  readonly name: string
  readonly title: string
  readonly svg: string
}

export interface LeftOut {
  readonly title: string
  /** What the logs lack, as a sentence. */
  readonly why: string
}

export type Drawn = Picture | LeftOut

/** The drawing, where there is one: figures without data are empty text. */
export const drawnOr = (name: string, title: string, svg: string, why: string): Drawn =>
  svg === '' ? { title, why } : { name, title, svg }
