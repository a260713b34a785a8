/** What the rest of kvfold sees of the C++ addon. Only binding.ts makes these objects. */
export type { AppliedAdapter, NativeAdapter } from './adapter.js'
export type { Native } from './binding.js'
export type { NativeCapture, Watched } from './capture.js'
export type { DecodeRun, NativeContext } from './context.js'
export type { NativeModel } from './model.js'
export type { NativeDry, NativeGrammar, NativeSampler, NativeWords, SamplerOptions } from './sampler.js'
export type * from './values.js'
