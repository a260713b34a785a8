/** Python's list methods that templates call; they change the list in place. */
import type { Value } from './library.js'
import { FunctionValue, isArray, IntegerValue, NullValue, UndefinedValue } from './values.js'

/** Null for a name that is no such method. */
export function listMethod(items: Value[], name: string): Value | null {
  switch (name) {
    case 'append':
      return new FunctionValue(([item]) => {
        if (item !== undefined) items.push(item)
        return new NullValue()
      })
    case 'extend':
      return new FunctionValue(([more]) => {
        if (more !== undefined && isArray(more)) items.push(...more.value)
        return new NullValue()
      })
    case 'pop':
      return new FunctionValue(
        ([index]) => items.splice(typeof index?.value === 'number' ? index.value : -1, 1)[0] ?? new UndefinedValue(),
      )
    case 'insert':
      return new FunctionValue(([index, item]) => {
        if (item !== undefined && typeof index?.value === 'number') items.splice(index.value, 0, item)
        return new NullValue()
      })
    case 'index':
      return new FunctionValue(([item]) => new IntegerValue(items.findIndex(({ value }) => value === item?.value)))
    case 'count':
      return new FunctionValue(([item]) => new IntegerValue(items.filter(({ value }) => value === item?.value).length))
    default:
      return null
  }
}
