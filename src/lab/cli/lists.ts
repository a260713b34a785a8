/** Parsers for options of several commands: lists of names, such as `--contract`, and the number of MemTool's tools. */
import { type Command, InvalidArgumentError } from 'commander'
import { integer } from '../../runtime/cli/options.js'

/** Returns a parser for a comma-separated list of names. It keeps their order and drops repetitions. `all`: the word for all names. */
export function oneOf<Name extends string>(names: readonly Name[], all?: string): (text: string) => readonly Name[] {
  return (text) => {
    if (text === all) return names
    const asked = [...new Set(text.split(',').map((part) => part.trim()))]
    const wrong = asked.find((name) => !(names as readonly string[]).includes(name))
    if (wrong === undefined) return asked as Name[]
    const every = all === undefined ? '' : `, or ${all}`
    throw new InvalidArgumentError(
      `${wrong || 'The empty name'} is not allowed; give one or several of ${names.join(', ')}, separated by commas${every}.`,
    )
  }
}

/** Makes a command's option `--contract` take a list. @param standard its default */
export function listContracts<Name extends string>(
  command: Command,
  about: string,
  names: readonly Name[],
  standard: readonly Name[],
): void {
  const contract = command.options.find((option) => option.attributeName() === 'contract')!
  delete contract.argChoices
  contract.argParser(oneOf(names)).description = about
  contract.default(standard, standard.join(','))
  command.setOptionValueWithSource('contract', standard, 'default')
}

/** Parses the number of tools in MemTool's catalogue: five per company, and at least ten, because a turn may ask for ten figures. */
export function toolCount(text: string): number {
  const count = integer(10, 50_000)(text)
  if (count % 5 !== 0) throw new InvalidArgumentError('It must be a multiple of 5, because each company has five tools.')
  return count
}
