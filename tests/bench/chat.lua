-- For wrk: chat requests whose texts all differ, so that no cache can answer, and one line of JSON at the end.
local model, key = os.getenv("BENCH_MODEL"), os.getenv("BENCH_KEY")
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer " .. key

local before = '{"model":"' .. model .. '","stream":false,"messages":[{"role":"system","content":"You are a helpful assistant."},'
  .. '{"role":"user","content":"Say something short about foxes and dogs. n=' .. os.time() .. "-"
local number = 0

function request()
  number = number + 1
  return wrk.format(nil, nil, nil, before .. number .. '"}]}')
end

function done(summary, latency)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  print(string.format('JSON {"requests":%d,"seconds":%f,"failed":%d,"p50_us":%f,"p99_us":%f}', summary.requests,
    summary.duration / 1e6, failed, latency:percentile(50), latency:percentile(99)))
end
