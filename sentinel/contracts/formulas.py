"""List the definitions of contracts as formulas, which reports show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.contracts.contract import Contract

_RATIO = "r = exp(log p - log p_old)"
_KL = {"k1": "-x", "abs": "|x|", "k2": "x^2 / 2", "k3": "exp(x) - 1 - x", "low_var_kl": "exp(x) - 1 - x"}

#: Contract -> options (``name=value``) -> formula. The first entry applies whose options agree with the scenario.
FORMULAS: Mapping[str, Mapping[str, str]] = {
    "advantage_normalisation": {
        "": "A' = (A - mean(A)) / (std(A) + eps), over the valid tokens  [arXiv:2006.05990, section 3.3]"
    },
    "discounted_return": {
        "": "G_t = sum over k >= t of gamma^(k - t) (r_k - beta KL_k)  [REINFORCE++, arXiv:2501.03262]"
    },
    "explained_variance": {"": "1 - Var(return - value) / Var(return)"},
    "generalised_advantage": {
        "": "A_t = delta_t + gamma lambda A_(t+1), delta_t = r_t + gamma V_(t+1) - V_t; return = A + V  "
        "[GAE, arXiv:1506.02438, equation 16]"
    },
    "group_advantage": {
        "estimator=grpo norm_by_std=False": "A_i = r_i - mean(r) of the group  [Dr. GRPO, arXiv:2503.20783]",
        "estimator=grpo": "A_i = (r_i - mean(r)) / (std(r) + eps), over the group  [GRPO, arXiv:2402.03300]",
        "estimator=rloo": "A_i = r_i - mean of the group's other rewards  [RLOO, arXiv:2402.14740]",
        "estimator=opo": "A_i = r_i - sum(length_j r_j) / sum(length_j), over the group  [OPO, arXiv:2505.23585]",
        "estimator=maxrl": "A_i = (r_i - mean(r)) / (mean(r) + eps), over the group  [MaxRL, arXiv:2602.02710]",
        "estimator=remax": "A_it = sum over k >= t of r_ik, minus the greedy reward  [ReMax, arXiv:2310.10505]",
    },
    "kl_estimate": {
        f"kl_estimator={name}": f"{name} = {formula}, x = log p_ref - log p  [http://joschu.net/blog/kl-approx.html]"
        for name, formula in _KL.items()
    },
    "loss_aggregation": {
        "loss_agg_mode=token-mean": "sum over valid tokens / number of valid tokens  [DAPO, arXiv:2503.14476]",
        "loss_agg_mode=seq-mean-token-sum": "mean over sequences of the sum over valid tokens  [arXiv:2503.20783]",
        "loss_agg_mode=seq-mean-token-mean": "mean over sequences of the mean over valid tokens  [arXiv:2402.03300]",
    },
    "overlong_penalty": {
        "": "r + factor R, R = 0 up to L_max - L_cache, then linear to -1 at L_max  [DAPO, arXiv:2503.14476]"
    },
    "policy_loss": {
        "algorithm=ppo": f"-min(r A, clip(r, 1 - low, 1 + high) A), {_RATIO}  [PPO, arXiv:1707.06347, equation 7]",
        "algorithm=gspo": "-min(s A, clip(s, 1 - low, 1 + high) A), s = exp(mean over tokens of log p - log p_old)  "
        "[GSPO, arXiv:2507.18071, equation 5]",
        "algorithm=gspo_token": "-min(s A, clip(s, 1 - low, 1 + high) A), s = sg(exp(mean over tokens of log p - log "
        "p_old)) p / sg(p)  [GSPO, arXiv:2507.18071, section 4.3]",
        "algorithm=cispo": f"-sg(clip(r, 1 - low, 1 + high)) A log p, {_RATIO}  [CISPO, arXiv:2506.13585, equation 4]",
        "algorithm=cispo_unified": f"0 where PPO clips, otherwise -sg(clip(r, 1 - low, 1 + high)) A log p, {_RATIO}  "
        "[CISPO, arXiv:2506.13585, equations 6 and 7]",
        "algorithm=icepop": f"-sg(r) A log p for 1 - low <= r <= 1 + high, otherwise 0, {_RATIO}  "
        "[IcePop, arXiv:2510.18855]",
        "algorithm=sapo": f"-4 / tau sigmoid(tau (r - 1)) A, tau by the sign of A, {_RATIO}  "
        "[SAPO, arXiv:2511.20347, section 3]",
        "algorithm=reinforce": "-A log p  [Williams 1992]",
        "algorithm=gpg": "-A log p  [GPG, arXiv:2504.02546]",
        "algorithm=importance_sampling": f"-r A, {_RATIO}  [PPO, arXiv:1707.06347, equation 6]",
        "algorithm=cross_entropy": "-log p",
        "algorithm=gmpo": "-A exp(mean over tokens of s min(s x, s clip(x, -low, high))), x = log p - log p_old, "
        "s = sign(A)  [GMPO, arXiv:2507.20673, section 3]",
        "algorithm=dppo_tv": f"-r A, but 0 where r has moved in the direction of A and |p - p_old| exceeds the "
        f"threshold, {_RATIO}  [DPPO, arXiv:2602.04879, section 4]",
        "algorithm=dppo_kl": f"-r A, but 0 where r has moved in the direction of A and the binary KL of p_old and p "
        f"exceeds the threshold, {_RATIO}  [DPPO, arXiv:2602.04879, section 4]",
        "algorithm=dro": "-A log p + beta / 2 (log p - log p_old)^2  [DRO, arXiv:2405.19107]",
        "algorithm=kimi": "-A log p + beta / 2 (log p - log p_old of the response)^2 / length  "
        "[Kimi k1.5, arXiv:2501.12599, equation 3]",
        "algorithm=topr": f"-w sg(clip(r, 0, 1)) A log p; for positive responses -w A log p, {_RATIO}  "
        "[TOPR, arXiv:2503.14286, equation 8]",
        "algorithm=clip_cov": f"PPO's loss, but 0 at random tokens whose covariance is between the bounds, {_RATIO}  "
        "[Clip-Cov, arXiv:2505.22617, section 4.1]",
        "algorithm=kl_cov": f"-r A, plus c |log r| at the tokens with the highest covariance, {_RATIO}  "
        "[KL-Cov, arXiv:2505.22617, section 4.2]",
    },
    "preference_loss": {
        "loss_type=sigmoid": "-log sigmoid(beta h), h = log-ratio of the chosen minus that of the rejected response  "
        "[DPO, arXiv:2305.18290, equation 7]",
        "loss_type=ipo": "(h - 1 / (2 beta))^2, h = mean log-ratio of the chosen minus that of the rejected response  "
        "[IPO, arXiv:2310.12036, equation 17]",
    },
    "reward_normalisation": {"": "r' = (r - mean(r)) / (std(r) + eps)"},
    "supervised_loss": {"": "-sum of log softmax(logits_(t-1))[label_t] / number of labels"},
    "token_log_probs": {"": "log softmax(logits / temperature)[token]"},
    "value_loss": {
        "cliprange_value=None": "(V - R)^2  [PPO, arXiv:1707.06347, equation 9]",
        "": "max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2)  [arXiv:2005.12729, section 3]",
    },
}


def formula_of(contract: Contract, inputs: Mapping[str, Any]) -> str:
    """Return a contract's definition as a formula, with its source; empty if :data:`FORMULAS` has none for the options.

    :param inputs: a scenario, or the options of a function; omitted inputs have their defaults.
    """
    defaults = {item.name: item.default for item in contract.inputs}
    values = {name: str(value) for name, value in {**defaults, **inputs}.items() if not hasattr(value, "shape")}
    for options, formula in FORMULAS.get(contract.name, {}).items():
        pairs = (option.split("=") for option in options.split())
        if all(values.get(name) == value for name, value in pairs):
            mode = values.get("loss_agg_mode", "")
            return f"{formula}; {mode}" if mode and "loss_agg_mode" not in options else formula
    return ""
