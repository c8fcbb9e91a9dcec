-- Every function is registered under the library's own name, so that libraries of several
-- builds live side by side. Reading ones may run on replicas; those that only free memory or
-- keep leases alive run on a full server too.
local flags = {
  load = { 'no-writes' },
  listing = { 'no-writes' },
  inbox = { 'no-writes' },
  heartbeat = { 'allow-oom' },
  sweep = { 'allow-oom' },
}

for name, fn in pairs(F) do
  redis.register_function({ function_name = LIBRARY .. '_' .. name, callback = fn, flags = flags[name] or {} })
end
