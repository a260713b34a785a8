/** Python's strftime in the C locale, for templates that print today's date. */

const MONTHS = 'January February March April May June July August September October November December'.split(' ')
const DAYS = 'Sunday Monday Tuesday Wednesday Thursday Friday Saturday'.split(' ')
const two = (number: number) => String(number).padStart(2, '0')

/** Local time. Directives it does not know stay as they are. */
export function strftime(date: Date, format: string): string {
  const month = MONTHS[date.getMonth()] ?? ''
  const day = DAYS[date.getDay()] ?? ''
  const parts: Readonly<Record<string, string>> = {
    Y: String(date.getFullYear()),
    y: two(date.getFullYear() % 100),
    m: two(date.getMonth() + 1),
    d: two(date.getDate()),
    e: String(date.getDate()).padStart(2, ' '),
    B: month,
    b: month.slice(0, 3),
    A: day,
    a: day.slice(0, 3),
    H: two(date.getHours()),
    I: two(((date.getHours() + 11) % 12) + 1),
    p: date.getHours() < 12 ? 'AM' : 'PM',
    M: two(date.getMinutes()),
    S: two(date.getSeconds()),
    '%': '%',
  }
  return format.replace(/%-?(.)/g, (directive, letter: string) => {
    const part = parts[letter]
    if (part === undefined) return directive
    return directive.startsWith('%-') ? part.replace(/^0(?=.)/, '') : part
  })
}
