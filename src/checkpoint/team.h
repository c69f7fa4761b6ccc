// Several ranks at work on one checkpoint. The leader, rank 0, goes through the protocol and gives orders; every rank,
// the leader too, carries each of them out at the same time as the others and answers. What fails on a rank is
// thrown by all of them, with the rank's name.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace pleat::checkpoint {

// How the ranks talk: all call the same in the same order. A rank that is lost makes the calls throw.
class Peers {
 public:
  virtual ~Peers() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Everywhere what the leader says.
  virtual std::string tell(const std::string& text) = 0;
  // On the leader what everybody says, by rank; elsewhere nothing.
  virtual std::vector<std::string> gather(const std::string& text) = 0;
};

class Alone : public Peers {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string tell(const std::string& text) override { return text; }
  std::vector<std::string> gather(const std::string& text) override { return {text}; }
};

class Team {
 public:
  using Work = std::function<std::string(const std::string& order)>;
  // `work` carries out an order on this rank. Both outlive this.
  Team(Peers& peers, const Work& work) : peers_(peers), work_(work) {}

  int rank() const { return peers_.rank(); }
  int size() const { return peers_.size(); }
  // All ranks call it. The leader runs `direct`; the others carry out orders until that is over. Returns what
  // `direct` did, or throws what it threw, on every rank.
  std::string run(const std::function<std::string()>& direct);
  // Inside `direct`: everybody's answer by rank. Throws the failure of the first rank that has one, after all
  // have answered.
  std::vector<std::string> all(const std::string& order);

 private:
  std::string answer(const std::string& order);

  Peers& peers_;
  const Work& work_;
};

}  // namespace pleat::checkpoint
