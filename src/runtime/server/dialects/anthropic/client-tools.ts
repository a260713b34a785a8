/**
 * Anthropic's predefined client tools, which a request names only by their type: a shell, a text editor, a memory. The model sees them as
 * ordinary tools with the parameters that Anthropic documents. Tools that Anthropic's servers carry out are left out.
 */
import type { ToolDefinition } from '../../../chat/message.js'

type Definition = Omit<ToolDefinition, 'name'>

/** Tools that only Anthropic's servers carry out. The model does not see them, and `kvfold.ignored` lists them. */
const LEFT_OUT = /^(?:web_search|web_fetch|code_execution)_\d{8}$/

const text = (description: string) => ({ type: 'string', description })
const RANGE = {
  type: 'array',
  items: { type: 'integer' },
  minItems: 2,
  maxItems: 2,
  description: 'for view: the first and the last line, counted from 1; -1 is the last line of the file',
}
const LINE = { type: 'integer', minimum: 0, description: 'for insert: the line after which the text goes; 0: before the first' }

const bash = (): Definition => ({
  description: 'Runs a command in a bash session that lasts from call to call, and returns what it printed.',
  parameters: {
    type: 'object',
    properties: {
      command: text('the command; left out only with restart'),
      restart: { type: 'boolean', description: 'true: begins a new session' },
    },
    additionalProperties: false,
  },
})

/** @param date version of the text editor, such as `20250728`. Versions before `20250429` have `undo_edit` and insert `new_str` */
function textEditor(date: string): Definition {
  const isOld = date < '20250429'
  return {
    description: 'Shows, creates and edits text files.',
    parameters: {
      type: 'object',
      properties: {
        command: { type: 'string', enum: ['view', 'create', 'str_replace', 'insert', ...(isOld ? ['undo_edit'] : [])] },
        path: text('the file, or for view also a folder'),
        view_range: RANGE,
        file_text: text('for create: the content of the file'),
        old_str: text('for str_replace: the text to replace; it must be in the file exactly once'),
        new_str: text(isOld ? 'for str_replace and insert: the new text' : 'for str_replace: the new text'),
        insert_line: LINE,
        ...(isOld ? {} : { insert_text: text('for insert: the text') }),
      },
      required: ['command', 'path'],
      additionalProperties: false,
    },
  }
}

const memory = (): Definition => ({
  description: 'Keeps notes in files below /memories, which last from conversation to conversation. Look there before you begin.',
  parameters: {
    type: 'object',
    properties: {
      command: { type: 'string', enum: ['view', 'create', 'str_replace', 'insert', 'delete', 'rename'] },
      path: text('the file or folder, such as /memories/notes.txt; left out only for rename'),
      view_range: RANGE,
      file_text: text('for create: the content of the file'),
      old_str: text('for str_replace: the text to replace; it must be in the file exactly once'),
      new_str: text('for str_replace: the new text'),
      insert_line: LINE,
      insert_text: text('for insert: the text'),
      old_path: text('for rename: the present path'),
      new_path: text('for rename: the new path'),
    },
    required: ['command'],
    additionalProperties: false,
  },
})

const KINDS: Readonly<Record<string, (date: string) => Definition>> = { bash, text_editor: textEditor, memory }

/** Returns the definition of the client tool with this type; null for other types. */
export function clientTool(type: string): Definition | null {
  const [, kind = '', date = ''] = /^(bash|text_editor|memory)_(\d{8})$/.exec(type) ?? []
  return KINDS[kind]?.(date) ?? null
}

export const isLeftOut = ({ type }: { readonly type?: string }): boolean => type !== undefined && LEFT_OUT.test(type)

/** Returns the tools that the model does not see, for `kvfold.ignored`: `tools[3]: web_search_20250305`. */
export const toolsLeftOut = (tools: readonly { readonly type?: string }[] = []): readonly string[] =>
  tools.flatMap((tool, index) => (isLeftOut(tool) ? [`tools[${index}]: ${tool.type}`] : []))
