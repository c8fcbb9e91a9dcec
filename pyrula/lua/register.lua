-- Every function is registered under the library's own name, so that libraries of several
-- builds live side by side. Reading ones may run on replicas; those that only free memory or
-- keep leases alive run on a full server too. While a library loads, the server lends it neither
-- `pairs` nor any other of Lua's own functions, hence the plain list.
local names = {
  'adopt', 'append', 'attributes', 'batch_add', 'batch_done', 'batch_due', 'claim', 'claim_run', 'closed',
  'closing', 'collected', 'commit', 'deliver', 'disown', 'emit', 'events_done', 'events_read', 'fork',
  'heartbeat', 'inbox', 'kids', 'listing', 'load', 'output', 'pause', 'revive', 'schedule_delete',
  'schedule_due', 'schedule_fired', 'schedule_list', 'schedule_note', 'schedule_put', 'submit', 'sweep',
  'terminate', 'trigger_drop', 'trigger_list', 'trigger_seek', 'unpause', 'wake'
}
local flags = {
  load = { 'no-writes' },
  listing = { 'no-writes' },
  inbox = { 'no-writes' },
  kids = { 'no-writes' },
  closing = { 'no-writes' },
  schedule_list = { 'no-writes' },
  trigger_list = { 'no-writes' },
  heartbeat = { 'allow-oom' },
  sweep = { 'allow-oom' },
}

for i = 1, #names do
  local name = names[i]
  redis.register_function({ function_name = LIBRARY .. '_' .. name, callback = F[name], flags = flags[name] or {} })
end
