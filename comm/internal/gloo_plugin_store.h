#pragma once
// The caller's store as Gloo sees it. Part of gloo_plugin.cc; not installed as an interface.

#include <gloo/rendezvous/store.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "gradwire/comm/transport/plugin_abi.h"

/// Gloo's view of the caller's store.
class CallbackStore final : public gloo::rendezvous::Store {
 public:
  explicit CallbackStore(const gradwire_plugin_store& store) : store_(store) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    require(store_.set(store_.self, key.c_str(), data.data(), data.size()));
  }
  std::vector<char> get(const std::string& key) override {
    std::vector<char> value(1024);
    size_t bytes = 0;
    require(store_.get(store_.self, key.c_str(), value.data(), value.size(), &bytes));
    if (bytes > value.size()) {
      value.resize(bytes);
      require(store_.get(store_.self, key.c_str(), value.data(), value.size(), &bytes));
    }
    value.resize(bytes);
    return value;
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      get(key);
    }
  }
  // The caller's store has a deadline of its own.
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  static void require(int outcome) {
    if (outcome != 0) {
      throw std::runtime_error("the store failed");
    }
  }
  gradwire_plugin_store store_;
};
