/** Parses options that take lists of names, such as `--contract`. */
import { type Command, InvalidArgumentError } from 'commander'

/** Returns a parser for an option that is a list of names. It keeps their order and drops repetitions. `all`: the word for all names. */
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

/** Lets the option `--contract` of a command take a list of names. @param standard the names when the user does not give the option */
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
