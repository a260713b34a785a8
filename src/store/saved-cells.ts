/** Owns what deleted threads have left in the disk tier, where an engine that is not loaded cannot delete it. */
import { open, readdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { readHead, recordOf } from '../engine/disk-tier-file.js'

/** A loaded engine's own books find the files gone, which costs it nothing but a recompute (DiskTierFolder). */
export class SavedCells {
  constructor(private readonly folder: string) {}

  /** Deletes the sequences of these conversations, whichever model they are of; says how many. A file that is not to be read stays. */
  async drop(conversations: readonly string[]): Promise<number> {
    const wanted = new Set(conversations)
    // Summaries and refreshes run beside the conversation, under its id with more behind it.
    const isWanted = (conversation: string) => wanted.has(conversation.split(/[/ ]/u)[0] ?? '')
    const names = await readdir(this.folder).catch(() => [])
    let dropped = 0
    for (const name of names.filter((each) => each.endsWith('.kvshelf'))) {
      const path = join(this.folder, name)
      const conversation = await conversationIn(path)
      if (conversation === null || !isWanted(conversation)) continue
      await rm(path, { force: true })
      dropped++
    }
    return dropped
  }
}

async function conversationIn(path: string): Promise<string | null> {
  const file = await open(path).catch(() => null)
  if (file === null) return null
  try {
    const head = await readHead(file)
    return head === 'refused' ? null : recordOf(head).conversation
  } catch {
    return null
  } finally {
    await file.close()
  }
}
