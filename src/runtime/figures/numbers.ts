/** Formats numbers for people: counts, shares, times, bytes and changes. The locale is fixed, so that outputs can be compared. */

const grouped = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 })

/** Writes a number as `12,345`, rounded to an integer. */
export const count = (value: number): string => grouped.format(value)

/** Writes a number with its noun: `1 token`, `12,345 tokens`. */
export const plural = (value: number, one: string, many = `${one}s`): string => `${count(value)} ${value === 1 ? one : many}`

/** Writes a share (0 to 1) as `97.8 %`. */
export const percent = (share: number, digits = 1): string => `${(share * 100).toFixed(digits)} %`

/** Writes milliseconds as `840 ms`, `2.4 s` or `1 min 12 s`. */
export function duration(milliseconds: number): string {
  if (milliseconds < 995) return `${Math.round(milliseconds)} ms`
  const seconds = milliseconds / 1000
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`
  const whole = Math.round(seconds)
  return `${Math.floor(whole / 60)} min ${whole % 60} s`
}

/** Writes a number of bytes as `1.5 MiB`. */
export function bytes(value: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB']
  let scaled = value
  let unit = 0
  while (scaled >= 1024 && unit < units.length - 1) {
    scaled /= 1024
    unit++
  }
  return `${unit === 0 ? scaled : scaled.toFixed(scaled < 10 ? 2 : 1)} ${units[unit]!}`
}

/** Writes a model's number of parameters as `1.2 M` or `7.6 B`. */
export function magnitude(value: number): string {
  for (const [size, letter] of [
    [1e12, 'T'],
    [1e9, 'B'],
    [1e6, 'M'],
    [1e3, 'K'],
  ] as const)
    if (value >= size) return `${(value / size).toFixed(value / size < 10 ? 2 : 1)} ${letter}`
  return String(value)
}

/** Writes a change with its sign, e.g. `+1.2` or `−340`: the larger it is, the fewer decimals. */
export const signed = (value: number): string =>
  `${value < 0 ? '−' : '+'}${Math.abs(value) >= 100 ? Math.abs(value).toFixed(0) : Math.abs(value) >= 1 ? Math.abs(value).toFixed(1) : String(+Math.abs(value).toPrecision(2))}`

/** Writes a p-value. One below 0.001 gets an exponent, and 0 (too small for a double) becomes `< 1e-300`. */
export const probability = (p: number): string => (p === 0 ? '< 1e-300' : p < 0.001 ? p.toExponential(1) : p.toFixed(3))
