/** Whether this is the long run (`npm run test:long`). It tries what the usual run leaves out, and more of everything that is random. */
export const LONG = process.env['KVFOLD_LONG'] !== undefined
